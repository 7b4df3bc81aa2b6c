"""Greedy decoding behind a working cache."""

from __future__ import annotations

from collections.abc import Collection

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention import Pass
from memory.engine.cache import DenseCache
from memory.engine.decoder import Decoder
from memory.engine.masks import causal_plan


def generate(
    decoder: Decoder, cache: DenseCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int]
) -> list[int]:
    """Most likely tokens until one of ``stop_ids`` (not returned) or ``max_new_tokens``; they stay in ``cache``."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens} must be at least 1.")
    tokens: list[int] = []
    logits = first_logits
    while len(tokens) < max_new_tokens:
        token = int(logits[-1].argmax())
        if token in stop_ids:
            break
        tokens.append(token)
        logits = append(decoder, cache, torch.tensor([token], device=decoder.device))
    return tokens


def append(decoder: Decoder, cache: DenseCache, token_ids: torch.Tensor) -> torch.Tensor:
    """Logits (1, vocab) after ``token_ids`` (rows,), computed behind the rows in ``cache`` and made part of it."""
    count, start, position = token_ids.numel(), cache.length, cache.next_position
    cache.reserve(count)
    places = torch.arange(position, position + count, device=decoder.device)
    positions = torch.cat([cache.positions, places])
    rows = torch.arange(start, start + count, device=decoder.device)
    state = Pass(
        cache=cache,
        rows=slice(start, start + count),
        visible=cache.end_at(start + count),
        angles=decoder.rope.at(places, position + count),
        plan=causal_plan(rows, positions, decoder.spec.dtype),
        rope_keys=decoder.spec.rope_keys,
        bare=cache.raw is not None,
    )
    hidden = decoder.run(decoder.embed(token_ids), state)
    logits = decoder.head(hidden[:, -1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    cache.extend(places, logits)
    return logits
