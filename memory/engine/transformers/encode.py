"""Encode many units in one forward: packed block-diagonally behind one shared context prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import PromptPass
from memory.engine.attention.masks import unit_plan
from memory.engine.attention.rope import Angles
from memory.engine.transformers.decoder import Decoder, check_ids
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import DenseCache, Rows, WorkingCache

PACK_ROWS = 4096  # rows per forward: bounds the memory of its activations

Pair = tuple[torch.Tensor, torch.Tensor]


def encode(decoder: Decoder, units: Sequence[Sequence[int]], context: KVBlock | None) -> list[Pair]:
    """Unrotated keys, and values (layers, kv_heads, tokens, head_dim) of each unit: it sees itself and ``context``."""
    return [pair for part in _parts(units) for pair in _encoded(decoder, part, context)]


def _parts(units: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    part: list[Sequence[int]] = []
    for unit in units:
        if part and sum(map(len, part)) + len(unit) > PACK_ROWS:
            yield part
            part = []
        part.append(unit)
    if part:
        yield part


def _encoded(decoder: Decoder, units: Sequence[Sequence[int]], context: KVBlock | None) -> list[Pair]:
    pack = Pack(decoder, units, context)
    for layer in range(decoder.spec.layers - 1):
        pack.hidden = decoder.layer(layer, pack.hidden, pack.state)
    pack.close()
    return pack.pairs()


class Pack:
    """Units that go through the layers together, each of which sees itself and ``context``; the first ``behind``, too.

    ``hidden`` (1, rows, hidden) are their rows before the layer that is next; rows ``rows`` of ``cache`` are theirs.
    """

    def __init__(
        self,
        decoder: Decoder,
        units: Sequence[Sequence[int]],
        context: KVBlock | None,
        behind: KVBlock | None = None,
    ) -> None:
        if any(not len(unit) for unit in units):
            raise ConfigError("a unit without tokens cannot be encoded; leave empty segments out.")
        check_ids([max(unit) for unit in units], decoder.spec.vocab)
        device, spec = decoder.device, decoder.spec
        self._decoder, self._lengths = decoder, [len(unit) for unit in units]
        before, ahead = (block.tokens if block is not None else 0 for block in (context, behind))
        first, total = before + ahead, before + ahead + sum(self._lengths)
        self.cache, self.rows = DenseCache(spec, total, device, raw=True), slice(first, total)
        if context is not None:
            place_block(decoder, self.cache, context, 0)
        if behind is not None:
            place_block(decoder, self.cache, behind, before)
        starts = [first, *[before] * (len(units) - 1)]
        places = torch.cat([torch.arange(n, device=device) + s for s, n in zip(starts, self._lengths, strict=True)])
        self.state = PromptPass(
            cache=self.cache,
            rows=self.rows,
            visible=self.cache.end_at(total),
            angles=decoder.rope.at(places, first + max(self._lengths)),
            plan=unit_plan(self._lengths, before, spec.dtype, device, ahead),
            rope_keys=spec.rope_keys,
            bare=True,
        )
        self.hidden = decoder.embed(torch.tensor([token for unit in units for token in unit], device=device))

    def close(self) -> None:
        """The last layer needs its projections only: nobody reads its output."""
        write_keys(self._decoder, self._decoder.spec.layers - 1, self.hidden, self.state)

    def pairs(self) -> list[Pair]:
        """Unrotated keys, and values, of each unit."""
        keys, values = (x[:, 0, :, self.rows].split(self._lengths, 2) for x in (self.cache.raw, self.cache.v))
        return [(k.contiguous(), v.contiguous()) for k, v in zip(keys, values, strict=True)]


def write_keys(decoder: Decoder, layer: int, hidden: torch.Tensor, state: PromptPass) -> None:
    """Keys and values of the rows that enter ``layer``, and nothing else of it: for whoever reads no output of it."""
    k, v = (made[None] for made in decoder.bare_kv(layer, hidden))
    place_layer(decoder, state.cache, layer, state.rows, state.angles, k, v)


def place_layer(
    decoder: Decoder, cache: WorkingCache, layer: int, rows: Rows, angles: Angles, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Put a layer's unrotated keys, and values (1, kv_heads, rows, head_dim), at ``rows``, which have ``angles``."""
    cache.write_raw(layer, rows, k)
    cache.write(layer, rows, decoder.rope.rotate_layers(k, angles, layer), v)


def place_block(decoder: Decoder, cache: DenseCache, block: KVBlock, start: int) -> None:
    """Put a whole block, all layers, at rows ``start...`` whose positions are their row numbers."""
    stop = start + block.tokens
    k, v = block.k.to(decoder.device)[:], block.v.to(decoder.device)[:]
    angles = decoder.rope.at(torch.arange(start, stop, device=decoder.device), stop)
    cache.k[:, 0, :, start:stop] = decoder.rope.rotate_layers(k, angles)
    cache.v[:, 0, :, start:stop] = v
    if cache.raw is not None:
        cache.raw[:, 0, :, start:stop] = k
