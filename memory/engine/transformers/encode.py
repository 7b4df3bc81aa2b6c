"""Encode many units in one forward: packed block-diagonally behind one shared context prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import Angles, AttentionHook, CoupledPass, PromptPass, at_rows
from memory.engine.attention.kernels import causal_plan, unit_plan
from memory.engine.transformers.decoder import Decoder, check_ids
from memory.kv_cache.block import KVBlock, resting
from memory.kv_cache.dense import DenseCache, Rows, WorkingCache
from memory.prompt.layout import Layout, Placement

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


class FusedEncoding:
    """A prompt's units without a block, each seeing itself and ``seen``: they go through every layer before it does.

    A layer's keys and values of theirs are written into the prompt's cache before its attention, as if they had been
    loaded; rows of the prompt that are computed there overwrite them. Units of the same identity are encoded once. One
    of them may see more: what its placement says it is ``behind``.
    """

    @classmethod
    def of(
        cls, decoder: Decoder, layout: Layout, cache: DenseCache, angles: Angles, seen: KVBlock | None
    ) -> FusedEncoding | None:
        """Those of ``layout``, whose rows have ``angles`` in ``cache``; None if there are none."""
        placed = [placement for placement in layout.placements if placement.fused]
        return cls(decoder, placed, cache, angles, seen) if placed else None

    def __init__(
        self, decoder: Decoder, placed: Sequence[Placement], cache: DenseCache, angles: Angles, seen: KVBlock | None
    ) -> None:
        self.runs = [slice(placement.start, placement.stop) for placement in placed]  # prompt rows
        ordered = sorted(placed, key=lambda placement: placement.behind is None)
        units = {placement.fused: placement.unit.token_ids for placement in ordered}
        self._pack = Pack(decoder, list(units.values()), seen, ordered[0].behind)
        self._decoder, self._cache = decoder, cache
        self._names, self._last = list(units), decoder.spec.layers - 1
        first = self._pack.rows.start
        starts = dict(zip(units, accumulate(map(len, units.values()), initial=first), strict=False))
        rows, source = [], []
        for placement in placed:
            rows += range(placement.start, placement.stop)
            source += range(starts[placement.fused], starts[placement.fused] + len(placement.unit.token_ids))
        self._rows, self._source = (torch.tensor(numbers, device=decoder.device) for numbers in (rows, source))
        self._angles = at_rows(angles, self._rows)
        self._mixed: torch.Tensor | None = None
        self._joined: tuple[Angles, Angles] | None = None
        self._attended, self._fed = -1, 0  # the last layer whose attention is done, and how many layers are done

    def attend(
        self, layer: int, hidden: torch.Tensor, state: PromptPass, hook: AttentionHook | None = None
    ) -> torch.Tensor:
        """The layer's first half of the prompt's rows ``hidden`` (1, rows, hidden), and of these before them."""
        rows, pack = hidden.shape[1], self._pack
        joint = CoupledPass(state, pack.state, {} if state.bare else self._behind(state.angles), self._place)
        mixed = self._decoder.attend(layer, torch.cat([hidden, pack.hidden], 1), joint, hook)
        self._attended = layer
        self._mixed = mixed[:, rows:]
        return mixed[:, :rows]

    def feed(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """The layer's other half of the prompt's rows ``mixed`` (1, rows, hidden), and of these."""
        out = self._decoder.feed(layer, torch.cat([mixed, self._mixed], 1))
        self._pack.hidden, self._fed = out[:, mixed.shape[1] :], layer + 1
        return out[:, : mixed.shape[1]]

    def close(self) -> None:
        """The last layer."""
        self._pack.close()
        self._place(self._last)

    def kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        """Per kind (kv_heads, len(rows), head_dim): unrotated K, or V, of prompt rows, of a layer up to the next one.

        :raises ConfigError: a row is none of these units', or the layer is further up
        """
        place = torch.searchsorted(self._rows, rows).clamp(max=self._rows.numel() - 1)
        if layer > max(self._attended, self._fed) or not torch.equal(self._rows[place], rows):
            raise ConfigError(f"layer {layer} of some rows asked for is in no block, and not computed yet")
        index = self._source[place]
        if layer > self._attended:  # its attention is still to come
            made = self._decoder.bare_kv(layer, self._pack.hidden, kinds)
            return tuple(x[:, index - self._pack.rows.start] for x in made)
        own = {"k": self._pack.cache.raw, "v": self._pack.cache.v}
        return tuple(own[kind][layer, 0][:, index] for kind in kinds)

    def blocks(self) -> tuple[KVBlock, ...]:
        """What was encoded, after `close`."""
        named = zip(self._names, self._pack.pairs(), strict=True)
        return tuple(KVBlock(name, resting(k), resting(v)) for name, (k, v) in named)

    def _behind(self, angles: Angles) -> Angles:
        """``angles`` of a pass over the prompt, and of these rows, which stay unmoved; made anew for another pass."""
        if self._joined is None or self._joined[0] is not angles:
            own = self._decoder.unmoved(self._pack.state.count)
            both = {key: tuple(torch.cat(pair, 1) for pair in zip(of, own, strict=True)) for key, of in angles.items()}
            self._joined = angles, both
        return self._joined[1]

    def _place(self, layer: int) -> None:
        own = self._pack.cache
        keys, values = own.raw[layer][:, :, self._source], own.v[layer][:, :, self._source]
        place_layer(self._decoder, self._cache, layer, self._rows, self._angles, keys, values)


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
