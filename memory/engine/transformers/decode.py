"""Greedy decoding behind a working cache."""

from __future__ import annotations

from collections.abc import Collection

import torch

from keep_agent.errors import ConfigError
from memory.engine.transformers.append import append
from memory.engine.transformers.decoder import Decoder
from memory.engine.transformers.finite_logits import most_likely
from memory.kv_cache.dense import WorkingCache


def generate(
    decoder: Decoder, cache: WorkingCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int]
) -> list[int]:
    """Most likely tokens until one of ``stop_ids`` (not returned) or ``max_new_tokens``; they stay in ``cache``.

    :raises ModelError: logits are not finite
    """
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens} must be at least 1.")
    tokens: list[int] = []
    logits = first_logits
    while len(tokens) < max_new_tokens:
        token = most_likely(logits[-1], decoder.spec.dtype, cache)
        if token in stop_ids:
            break
        tokens.append(token)
        logits = append(decoder, cache, torch.tensor([token], device=decoder.device))
    return tokens
