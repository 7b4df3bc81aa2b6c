"""Encoding of memory units: runs of tokens, each of which attends to itself and a context and becomes one block.

Units are encoded many per forward, or in the forward of a prompt that uses them (fused).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import Angles, AttentionHook, CoupledPass, KVCopier, PromptPass, at_rows
from memory.engine.attention.kernels import causal_plan, unit_plan
from memory.engine.transformers.decoder import Decoder, check_ids
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import DenseCache
from memory.prompt.layout import Placement

FORWARD_ROWS = 4096  # maximum number of rows per forward, which bounds the memory of its activations

Pair = tuple[torch.Tensor, torch.Tensor]


def encode(decoder: Decoder, units: Sequence[Sequence[int]], context: KVBlock | None) -> list[Pair]:
    """Encode each unit after ``context``; returns unrotated keys and values (layers, kv_heads, tokens, head_dim)."""
    batches: list[list[Sequence[int]]] = []
    for unit in units:
        if not batches or sum(map(len, batches[-1])) + len(unit) > FORWARD_ROWS:
            batches.append([])
        batches[-1].append(unit)
    pairs: list[Pair] = []
    for part in batches:
        batch = UnitBatch(decoder, part, context)
        for layer in range(decoder.spec.layers - 1):
            batch.hidden = decoder.layer(layer, batch.hidden, batch.state)
        batch.close()
        pairs += batch.pairs()
    return pairs


class UnitBatch:
    """Units in one forward, each of which attends to itself and ``context``; the first one also to ``prefix``.

    ``hidden`` (1, rows, hidden) is the input of the next layer; the units take ``rows`` of ``cache``.
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
        device, spec = decoder.device, decoder.spec
        self._decoder, self._lengths = decoder, [len(unit) for unit in units]
        before, ahead = (0 if block is None else block.k.shape[2] for block in (context, prefix))
        first, total = before + ahead, before + ahead + sum(self._lengths)
        starts = [first, *[before] * (len(units) - 1)]
        places = torch.cat([torch.arange(n, device=device) + s for s, n in zip(starts, self._lengths, strict=True)])
        token_ids = torch.tensor([token for unit in units for token in unit], device=device)
        self.cache, self.rows = DenseCache(spec, total, device, raw=True), slice(first, total)
        visible = self.cache.end_at(total)
        if context is not None:
            decoder.rope.place_block(self.cache, context, 0)
        if prefix is not None:
            decoder.rope.place_block(self.cache, prefix, before)
        angles = decoder.rope.angles_at(places, first + max(self._lengths))
        plan = unit_plan(self._lengths, before, spec.dtype, device, ahead)
        self.state = PromptPass(self.cache, self.rows, visible, angles, plan, spec.rope_keys, unrotated=True)
        check_ids(token_ids, spec.vocab)
        self.hidden = decoder.embed(token_ids)

    def close(self) -> None:
        """Project keys and values of the last layer, whose output is not needed."""
        write_keys(self._decoder, self._decoder.spec.layers - 1, self.hidden, self.state)

    def pairs(self) -> list[Pair]:
        """Return unrotated keys, and values, of each unit."""
        keys, values = (x[:, 0, :, self.rows].split(self._lengths, 2) for x in (self.cache.raw, self.cache.v))
        return [(k.contiguous(), v.contiguous()) for k, v in zip(keys, values, strict=True)]


def write_keys(decoder: Decoder, layer: int, hidden: torch.Tensor, state: PromptPass) -> None:
    """Write keys and values of the rows that enter ``layer``, without computing its output."""
    k, v = decoder.unrotated_kv(layer, hidden)
    decoder.rope.place(state.cache, layer, state.rows, state.angles, k[None], v[None])


class FusedEncoding:
    """Units without a block, encoded in the forward of the prompt that uses them, to read the model's weights once.

    Each unit attends to itself and ``context``; one unit may also attend to its ``prefix_block``. In every layer the
    units' keys and values are written to the prompt's cache before the prompt's rows attend, as if loaded from blocks.
    A recomputed row's keys and values replace those of its unit. Units of the same identity are encoded once.
    """

    def __init__(
        self,
        decoder: Decoder,
        placements: Sequence[Placement],
        cache: DenseCache,
        angles: Angles,
        context: KVBlock | None,
    ) -> None:
        """:param angles: RoPE angles of all rows of the prompt's ``cache``"""
        ordered = sorted(placements, key=lambda placement: placement.prefix_block is None)
        units = {placement.fused: placement.unit.token_ids for placement in ordered}
        self._batch = UnitBatch(decoder, list(units.values()), context, ordered[0].prefix_block)
        self._decoder, self._names = decoder, list(units)
        starts = dict(zip(units, accumulate(map(len, units.values()), initial=self._batch.rows.start), strict=False))
        rows, source = [], []
        for placement in placements:
            rows += range(placement.start, placement.stop)
            source += range(starts[placement.fused], starts[placement.fused] + len(placement.unit.token_ids))
        self._no_rotation = decoder.rope.identity(self._batch.hidden.shape[1], decoder.device)
        self._rows = torch.tensor(rows, device=decoder.device)
        self._source = torch.tensor(source, device=decoder.device)
        angles = at_rows(angles, self._rows)
        self._copier = KVCopier(decoder.rope, self._batch.cache, self._source, cache, self._rows, angles)
        self._mixed: torch.Tensor | None = None
        self._joined: tuple[Angles, Angles] | None = None
        self._attended, self._layers_done = -1, 0  # last layer whose attention is done; number of layers done

    def attend(
        self, layer: int, hidden: torch.Tensor, state: PromptPass, hook: AttentionHook | None = None
    ) -> torch.Tensor:
        """Compute a layer's attention half for the prompt's rows ``hidden`` (1, rows, hidden) and the units."""
        rows, batch = hidden.shape[1], self._batch
        angles = {} if state.unrotated else self._join_angles(state.angles)
        joint = CoupledPass(state, batch.state, angles, state.unrotated, self._copier)
        mixed = self._decoder.attend(layer, torch.cat([hidden, batch.hidden], 1), joint, hook)
        self._attended = layer
        self._mixed = mixed[:, rows:]
        return mixed[:, :rows]

    def feed(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """Compute a layer's MLP half for the prompt's rows ``mixed`` (1, rows, hidden) and the units."""
        out = self._decoder.feed(layer, torch.cat([mixed, self._mixed], 1))
        self._batch.hidden, self._layers_done = out[:, mixed.shape[1] :], layer + 1
        return out[:, : mixed.shape[1]]

    def close(self) -> None:
        """Write the units' keys and values of the last layer."""
        self._batch.close()
        self._copier.copy(self._decoder.spec.layers - 1)

    def kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        """Return (kv_heads, len(rows), head_dim) of prompt rows per kind: unrotated keys for ``k``, values for ``v``.

        :raises ConfigError: a row is in no fused unit, or ``layer`` is later than the next one to compute
        """
        place = torch.searchsorted(self._rows, rows).clamp(max=self._rows.numel() - 1)
        if layer > max(self._attended, self._layers_done) or not torch.equal(self._rows[place], rows):
            raise ConfigError(
                f"some rows are in no fused unit, or layer {layer} is not computed yet: request rows of fused units, "
                "up to the next layer"
            )
        index = self._source[place]
        if layer > self._attended:
            states = self._decoder.unrotated_kv(layer, self._batch.hidden, kinds)
            return tuple(x[:, index - self._batch.rows.start] for x in states)
        stored = {"k": self._batch.cache.raw, "v": self._batch.cache.v}
        return tuple(stored[kind][layer, 0][:, index] for kind in kinds)

    def blocks(self) -> tuple[KVBlock, ...]:
        """Return the encoded blocks, after `close`."""
        pairs = zip(self._names, self._batch.pairs(), strict=True)
        return tuple(KVBlock(name, to_host(k), to_host(v)) for name, (k, v) in pairs)

    def _join_angles(self, angles: Angles) -> Angles:
        """Append angles of no rotation for the units' rows to ``angles``; cached for the same ``angles``."""
        if self._joined is None or self._joined[0] is not angles:
            no_rotation = self._no_rotation
            joint = {
                key: tuple(torch.cat(pair, 1) for pair in zip(x, no_rotation, strict=True)) for key, x in angles.items()
            }
            self._joined = angles, joint
        return self._joined[1]


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Move keys or values (layers, kv_heads, tokens, head_dim) to host memory, as blocks store them.

    From CUDA they go to pinned memory, in which all heads of a token are adjacent. A run of a layer's rows is then
    contiguous, and needs only one copy back. Memory that host and device share (MPS) is not copied.
    """
    if x.device.type != "cuda":
        return x if x.device.type == "mps" else x.cpu()
    rows = x.transpose(1, 2)
    return torch.empty(rows.shape, dtype=x.dtype, pin_memory=True).copy_(rows).transpose(1, 2)


def query_states(
    decoder: Decoder, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
) -> list[torch.Tensor]:
    """Return unrotated queries (heads, rows, head_dim) of ``token_ids`` after ``context``, at ascending ``layers``."""
    check_ids(token_ids, decoder.spec.vocab)
    spec, device, before = decoder.spec, decoder.device, 0 if context is None else context.k.shape[2]
    stop = before + len(token_ids)
    cache = DenseCache(spec, stop, device)
    if context is not None:
        decoder.rope.place_block(cache, context, 0)
    places = torch.arange(stop, device=device)
    angles, plan = decoder.rope.angles_at(places[before:], stop), causal_plan(places[before:], places, spec.dtype)
    state = PromptPass(cache, slice(before, stop), cache.end_at(stop), angles, plan, spec.rope_keys)
    hidden, states = decoder.embed(torch.tensor(list(token_ids), device=device)), []
    for layer in range(layers[-1] + 1):
        if layer in layers:
            states.append(decoder.unrotated_q(layer, hidden))
        if layer < layers[-1]:
            hidden = decoder.layer(layer, hidden, state)
    return states
