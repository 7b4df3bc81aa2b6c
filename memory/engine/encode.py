"""Encode many units in one forward: packed block-diagonally behind one shared context prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from keep_agent.errors import ConfigError
from memory.block import KVBlock
from memory.engine.attention import Pass
from memory.engine.cache import DenseCache
from memory.engine.decoder import Decoder
from memory.engine.masks import unit_plan
from memory.engine.rope import rotate

PACK_ROWS = 4096  # rows per forward: bounds the memory of its activations

Pair = tuple[torch.Tensor, torch.Tensor]


def encode(decoder: Decoder, units: Sequence[Sequence[int]], context: KVBlock | None) -> list[Pair]:
    """Unrotated keys, and values (layers, kv_heads, tokens, head_dim) of each unit: it sees itself and ``context``."""
    if any(not len(unit) for unit in units):
        raise ConfigError("a unit without tokens cannot be encoded; leave empty segments out.")
    return [pair for pack in _packs(units) for pair in _encode_pack(decoder, pack, context)]


def _packs(units: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    pack: list[Sequence[int]] = []
    for unit in units:
        if pack and sum(map(len, pack)) + len(unit) > PACK_ROWS:
            yield pack
            pack = []
        pack.append(unit)
    if pack:
        yield pack


def _encode_pack(decoder: Decoder, units: list[Sequence[int]], context: KVBlock | None) -> list[Pair]:
    device, spec = decoder.device, decoder.spec
    lengths, before = [len(unit) for unit in units], context.tokens if context is not None else 0
    total, top = sum(lengths), before + max(lengths)
    cache = DenseCache(spec, before + total, device, raw=True)
    if context is not None:
        place_block(decoder, cache, context, 0)
    ids = torch.tensor([token for unit in units for token in unit], device=device)
    places = torch.cat([torch.arange(before, before + n, device=device) for n in lengths])
    state = Pass(
        cache=cache,
        rows=slice(before, before + total),
        visible=cache.end_at(before + total),
        angles=decoder.rope.at(places, top),
        plan=unit_plan(lengths, before, spec.dtype, device),
        rope_keys=spec.rope_keys,
        bare=True,
    )
    hidden = decoder.embed(ids)
    for layer in range(spec.layers - 1):
        hidden = decoder.layer(layer, hidden, state)
    write_keys(decoder, spec.layers - 1, hidden, state)
    rows = slice(before, before + total)
    keys, values = cache.raw[:, 0, :, rows], cache.v[:, 0, :, rows]
    return [
        (k.contiguous(), v.contiguous()) for k, v in zip(keys.split(lengths, 2), values.split(lengths, 2), strict=True)
    ]


def write_keys(decoder: Decoder, layer: int, hidden: torch.Tensor, state: Pass) -> None:
    """Keys and values of the rows that enter ``layer``, and nothing else of it: for whoever reads no output of it."""
    k, v = (made[None] for made in decoder.bare_kv(layer, hidden))
    state.cache.write_raw(layer, state.rows, k)
    angles = state.angles[state.rope_keys[layer]]
    state.cache.write(layer, state.rows, rotate(decoder.layers[layer].self_attn, k, *angles), v)


def place_block(decoder: Decoder, cache: DenseCache, block: KVBlock, start: int) -> None:
    """Put a whole block, all layers, at rows ``start...`` whose positions are their row numbers."""
    stop = start + block.tokens
    k, v = block.k.to(decoder.device)[:], block.v.to(decoder.device)[:]
    angles = decoder.rope.at(torch.arange(start, stop, device=decoder.device), stop)
    cache.k[:, 0, :, start:stop] = decoder.rope.rotate_layers(k, angles)
    cache.v[:, 0, :, start:stop] = v
    if cache.raw is not None:
        cache.raw[:, 0, :, start:stop] = k
