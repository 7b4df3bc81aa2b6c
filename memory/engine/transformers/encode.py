"""Encoding of units: many in one forward, block-diagonal behind a shared context, alone or fused with a prefill."""

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
    """Encode each unit behind ``context``: unrotated keys, and values, (layers, kv_heads, tokens, head_dim)."""
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
    """Units in one forward, each of which sees itself and ``context``; the first unit also sees ``prefix``.

    ``hidden`` (1, rows, hidden) are their rows before the layer that is next; rows ``rows`` of ``cache`` are theirs.
    """

    def __init__(
        self,
        decoder: Decoder,
        units: Sequence[Sequence[int]],
        context: KVBlock | None,
        prefix: KVBlock | None = None,
    ) -> None:
        if any(not len(unit) for unit in units):
            raise ConfigError("a unit without tokens cannot be encoded; leave empty segments out.")
        check_ids([max(unit) for unit in units], decoder.spec.vocab)
        device, spec = decoder.device, decoder.spec
        self._decoder, self._lengths = decoder, [len(unit) for unit in units]
        before, ahead = (block.tokens if block is not None else 0 for block in (context, prefix))
        first, total = before + ahead, before + ahead + sum(self._lengths)
        self.cache, self.rows = DenseCache(spec, total, device, raw=True), slice(first, total)
        if context is not None:
            place_block(decoder, self.cache, context, 0)
        if prefix is not None:
            place_block(decoder, self.cache, prefix, before)
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
        """Project keys and values of the last layer, whose output is not needed."""
        write_keys(self._decoder, self._decoder.spec.layers - 1, self.hidden, self.state)

    def pairs(self) -> list[Pair]:
        """Return unrotated keys, and values, of each unit."""
        keys, values = (x[:, 0, :, self.rows].split(self._lengths, 2) for x in (self.cache.raw, self.cache.v))
        return [(k.contiguous(), v.contiguous()) for k, v in zip(keys, values, strict=True)]


def write_keys(decoder: Decoder, layer: int, hidden: torch.Tensor, state: PromptPass) -> None:
    """Write keys and values of the rows that enter ``layer``, without computing its output."""
    k, v = (states[None] for states in decoder.bare_kv(layer, hidden))
    place_layer(decoder, state.cache, layer, state.rows, state.angles, k, v)


def place_layer(
    decoder: Decoder, cache: WorkingCache, layer: int, rows: Rows, angles: Angles, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Write a layer's unrotated keys, and values (1, kv_heads, rows, head_dim), at ``rows`` with their ``angles``."""
    cache.write_raw(layer, rows, k)
    cache.write(layer, rows, decoder.rope.rotate_layers(k, angles, layer), v)


def place_block(decoder: Decoder, cache: DenseCache, block: KVBlock, start: int) -> None:
    """Write all layers of a block at rows from ``start``, whose positions are their row numbers."""
    stop = start + block.tokens
    k, v = block.k.to(decoder.device)[:], block.v.to(decoder.device)[:]
    angles = decoder.rope.at(torch.arange(start, stop, device=decoder.device), stop)
    cache.k[:, 0, :, start:stop] = decoder.rope.rotate_layers(k, angles)
    cache.v[:, 0, :, start:stop] = v
    if cache.raw is not None:
        cache.raw[:, 0, :, start:stop] = k


class FusedEncoding:
    """Units without a block, encoded in the forward of the prompt that reads them: weights are read once, not twice.

    Each unit sees itself and ``context``, one of them also its placement's ``behind``. In every layer their keys and
    values enter the prompt's cache before its attention, as if loaded; recomputed rows overwrite them. Units of the
    same identity are encoded once.
    """

    @classmethod
    def of(
        cls, decoder: Decoder, layout: Layout, cache: DenseCache, angles: Angles, context: KVBlock | None
    ) -> FusedEncoding | None:
        """Collect the fused units of ``layout``, whose rows have ``angles`` in ``cache``; None without any."""
        placements = [placement for placement in layout.placements if placement.fused]
        return cls(decoder, placements, cache, angles, context) if placements else None

    def __init__(
        self,
        decoder: Decoder,
        placements: Sequence[Placement],
        cache: DenseCache,
        angles: Angles,
        context: KVBlock | None,
    ) -> None:
        self.runs = [slice(placement.start, placement.stop) for placement in placements]  # prompt rows
        ordered = sorted(placements, key=lambda placement: placement.behind is None)
        units = {placement.fused: placement.unit.token_ids for placement in ordered}
        self._pack = Pack(decoder, list(units.values()), context, ordered[0].behind)
        self._decoder, self._cache = decoder, cache
        self._names, self._last = list(units), decoder.spec.layers - 1
        first = self._pack.rows.start
        starts = dict(zip(units, accumulate(map(len, units.values()), initial=first), strict=False))
        rows, source = [], []
        for placement in placements:
            rows += range(placement.start, placement.stop)
            source += range(starts[placement.fused], starts[placement.fused] + len(placement.unit.token_ids))
        self._rows, self._source = (torch.tensor(numbers, device=decoder.device) for numbers in (rows, source))
        self._angles = at_rows(angles, self._rows)
        self._mixed: torch.Tensor | None = None
        self._joined: tuple[Angles, Angles] | None = None
        self._attended, self._layers_done = (
            -1,
            0,
        )  # last layer with attention done; layers done

    def attend(
        self, layer: int, hidden: torch.Tensor, state: PromptPass, hook: AttentionHook | None = None
    ) -> torch.Tensor:
        """Compute a layer's attention half for the prompt's rows ``hidden`` (1, rows, hidden) and the units."""
        rows, pack = hidden.shape[1], self._pack
        joint = CoupledPass(state, pack.state, {} if state.bare else self._join_angles(state.angles), self._place)
        mixed = self._decoder.attend(layer, torch.cat([hidden, pack.hidden], 1), joint, hook)
        self._attended = layer
        self._mixed = mixed[:, rows:]
        return mixed[:, :rows]

    def feed(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """Compute a layer's MLP half for the prompt's rows ``mixed`` (1, rows, hidden) and the units."""
        out = self._decoder.feed(layer, torch.cat([mixed, self._mixed], 1))
        self._pack.hidden, self._layers_done = out[:, mixed.shape[1] :], layer + 1
        return out[:, : mixed.shape[1]]

    def close(self) -> None:
        """Write the units' keys and values of the last layer."""
        self._pack.close()
        self._place(self._last)

    def kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        """Return unrotated K, or V, (kv_heads, len(rows), head_dim) per kind, of prompt rows.

        :raises ConfigError: a row is of no fused unit, or ``layer`` is above the next one
        """
        place = torch.searchsorted(self._rows, rows).clamp(max=self._rows.numel() - 1)
        if layer > max(self._attended, self._layers_done) or not torch.equal(self._rows[place], rows):
            raise ConfigError(f"layer {layer} of some rows is in no block, and not computed yet: ask after that layer")
        index = self._source[place]
        if layer > self._attended:
            states = self._decoder.bare_kv(layer, self._pack.hidden, kinds)
            return tuple(x[:, index - self._pack.rows.start] for x in states)
        stored = {"k": self._pack.cache.raw, "v": self._pack.cache.v}
        return tuple(stored[kind][layer, 0][:, index] for kind in kinds)

    def blocks(self) -> tuple[KVBlock, ...]:
        """Return the encoded blocks, after `close`."""
        pairs = zip(self._names, self._pack.pairs(), strict=True)
        return tuple(KVBlock(name, resting(k), resting(v)) for name, (k, v) in pairs)

    def _join_angles(self, angles: Angles) -> Angles:
        """Append identity angles for the units' rows to ``angles``; kept until another pass's angles come."""
        if self._joined is None or self._joined[0] is not angles:
            still = self._decoder.unmoved(self._pack.state.count)
            joint = {
                key: tuple(torch.cat(pair, 1) for pair in zip(of, still, strict=True)) for key, of in angles.items()
            }
            self._joined = angles, joint
        return self._joined[1]

    def _place(self, layer: int) -> None:
        units = self._pack.cache
        keys, values = units.raw[layer][:, :, self._source], units.v[layer][:, :, self._source]
        place_layer(self._decoder, self._cache, layer, self._rows, self._angles, keys, values)


def query_states(
    decoder: Decoder, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
) -> list[torch.Tensor]:
    """Return unrotated queries (heads, rows, head_dim) at each of ``layers`` (rising), of rows behind ``context``."""
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
    hidden, states = decoder.embed(torch.tensor(list(token_ids), device=device)), []
    for layer in range(layers[-1] + 1):
        if layer in layers:
            states.append(decoder.bare_q(layer, hidden))
        if layer < layers[-1]:
            hidden = decoder.layer(layer, hidden, state)
    return states
