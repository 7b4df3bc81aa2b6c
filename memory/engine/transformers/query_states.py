"""What a model would ask for: the query states of some rows behind a context, and nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memory.engine.attention.function import PromptPass
from memory.engine.attention.masks import causal_plan
from memory.engine.transformers.decoder import Decoder, check_ids
from memory.engine.transformers.encode import place_block
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import DenseCache


def query_states(
    decoder: Decoder, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
) -> list[torch.Tensor]:
    """Unrotated queries (heads, rows, head_dim) at each of ``layers`` (rising), of rows that see only ``context``."""
    check_ids(token_ids, decoder.spec.vocab)
    spec, device, before = decoder.spec, decoder.device, context.tokens if context is not None else 0
    stop = before + len(token_ids)
    cache = DenseCache(spec, stop, device)
    if context is not None:
        place_block(decoder, cache, context, 0)
    places = torch.arange(stop, device=device)
    state = PromptPass(
        cache=cache,
        rows=slice(before, stop),
        visible=cache.end_at(stop),
        angles=decoder.rope.at(places[before:], stop),
        plan=causal_plan(places[before:], places, spec.dtype),
        rope_keys=spec.rope_keys,
    )
    hidden, found = decoder.embed(torch.tensor(list(token_ids), device=device)), []
    for layer in range(layers[-1] + 1):
        if layer in layers:
            found.append(decoder.bare_q(layer, hidden))
        if layer < layers[-1]:
            hidden = decoder.layer(layer, hidden, state)
    return found
