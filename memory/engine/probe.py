"""The lazy probe: answers a recompute stage's questions about one layer, and computes nothing it is not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention import Attended
from memory.engine.cache import DenseCache
from memory.engine.decoder import Decoder
from memory.engine.kernels import Block, block_probabilities
from memory.engine.masks import bias_of
from memory.engine.trace import Hops, PrefillTrace
from memory.stages import Layout


@dataclass
class SegmentTable:
    """Which rows make up which segment, as the matrix that averages over a segment's tokens."""

    layout: Layout

    @property
    def count(self) -> int:
        return len(self.layout.segments)

    @cached_property
    def averaging(self) -> torch.Tensor:
        """(rows, segments) float32, 1 / tokens where the row belongs to the segment."""
        owner = self.layout.segment_of
        member = owner[:, None] == torch.arange(self.count, device=owner.device)[None]
        return member / member.sum(0).clamp(min=1)


@dataclass
class LayerProbe:
    """Attention weights and keys/values of ``layer``, whose active rows are ``active``.

    ``entered`` and ``left`` are the hidden states (1, active rows, hidden) before and after the layer.
    """

    layer: int
    decoder: Decoder
    layout: Layout
    table: SegmentTable
    cache: DenseCache
    trace: PrefillTrace
    active: torch.Tensor
    attended: Attended
    entered: torch.Tensor
    left: torch.Tensor
    asked: bool = False  # for attention mass
    _between: dict[bool, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def mass_from_query(self) -> torch.Tensor:
        """(segments,) attention from the query rows: mean over heads and query rows, mean over the segment's tokens."""
        self.asked = True
        first = int(torch.searchsorted(self.active, self.layout.query))
        if self.attended.weights:
            return self._all_mass[first:].mean(0)
        rows = torch.arange(first, self.active.numel(), device=self.active.device)
        return self._row_mass(rows, causal=True).mean(0)

    def mass_from_segments(self, chosen: torch.Tensor, causal: bool = True) -> torch.Tensor:
        """(segments,) the same from the active rows of the ``chosen`` segments."""
        if not chosen.numel():
            return self.table.averaging.new_zeros(self.table.count)
        weight = self._active_counts[chosen].to(self.table.averaging.dtype)
        total = weight.sum().clamp(min=1)
        return (self.mass_between(chosen, causal) * weight[:, None]).sum(0) / total

    def mass_between(self, chosen: torch.Tensor, causal: bool = True) -> torch.Tensor:
        """(len(chosen), segments) the same, a line per chosen segment; lines once computed are kept for later hops."""
        self.asked = True
        if causal not in self._between:
            size = self.table.count
            lines = torch.zeros(size, size, dtype=self._mass_dtype, device=self.active.device)
            self._between[causal] = (lines, torch.zeros(size, dtype=torch.bool, device=self.active.device))
        lines, known = self._between[causal]
        wanted = torch.zeros_like(known)
        wanted[chosen] = True
        if bool((wanted & ~known).any()):
            self._add_lines(lines, wanted & ~known, causal)
            known |= wanted
        return lines[chosen]

    def fresh_kv(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(kv_heads, len(rows), head_dim) unrotated K, and V, that ``layer`` computes for active ``rows``.

        :raises ConfigError: for layers other than this one and the next, or rows that are not active.
        """
        if layer not in (self.layer, self.layer + 1):
            raise ConfigError(
                f"after layer {self.layer} only layers {self.layer} and {self.layer + 1} can be probed, not {layer}."
            )
        index = torch.searchsorted(self.active, rows).clamp(max=self.active.numel() - 1)
        if not torch.equal(self.active[index], rows):
            raise ConfigError(f"fresh keys of rows that are not active at layer {self.layer} do not exist.")
        hidden = self.entered if layer == self.layer else self.left
        return self.decoder.bare_kv(layer, hidden[:, index])

    def cached_kv(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(kv_heads, len(rows), head_dim) K and V that the blocks hold for ``rows``.

        :raises ConfigError: for rows without a block.
        """
        placed = [p for p in self.layout.placements if p.block is not None]
        numbers = torch.cat([torch.arange(p.start, p.stop, device=rows.device) for p in placed]) if placed else rows[:0]
        index = torch.searchsorted(numbers, rows).clamp(max=max(numbers.numel() - 1, 0))
        if numbers.numel() == 0 or not torch.equal(numbers[index], rows):
            raise ConfigError("cached keys were asked for rows that no block covers.")
        keys = torch.cat([p.block.k[layer] for p in placed], 1).to(rows.device)
        values = torch.cat([p.block.v[layer] for p in placed], 1).to(rows.device)
        return keys[:, index], values[:, index]

    def report(self, hops: int, edges: Sequence[tuple[int, int, float]] = ()) -> None:
        """Note in the trace how this layer's choice came about."""
        self.trace.hops.append(Hops(self.layer, hops, tuple(edges)))

    @property
    def _mass_dtype(self) -> torch.dtype:
        return torch.promote_types(self.attended.query.dtype, torch.float32)

    @cached_property
    def _active_segments(self) -> torch.Tensor:
        """Segment of each active row, -1 for context and query."""
        return self.layout.segment_of[self.active]

    @cached_property
    def _active_counts(self) -> torch.Tensor:
        owner = self._active_segments
        return torch.bincount(owner[owner >= 0], minlength=self.table.count)

    def _add_lines(self, lines: torch.Tensor, new: torch.Tensor, causal: bool) -> None:
        owner = self._active_segments
        rows = (new[owner.clamp(min=0)] & (owner >= 0)).nonzero()[:, 0]
        kept = causal and self.attended.weights
        mass = self._all_mass[rows] if kept else self._row_mass(rows, causal)
        sums = torch.zeros_like(lines).index_add_(0, owner[rows], mass)
        lines += sums / self._active_counts.clamp(min=1)[:, None]

    @cached_property
    def _all_mass(self) -> torch.Tensor:
        """(active rows, segments) from the weights that the layer's own attention left behind."""
        parts = []
        for block, weights in zip(self.attended.blocks, self.attended.weights, strict=True):
            averaging = self.table.averaging[block.k0 : block.k1].to(self._mass_dtype)  # without padded columns
            parts.append(weights[..., : len(averaging)].mean(0, dtype=self._mass_dtype) @ averaging)
        return torch.cat(parts)

    def _row_mass(self, rows: torch.Tensor, causal: bool) -> torch.Tensor:
        """(len(rows), segments) mass of the active rows number ``rows``: mean over heads, mean over tokens."""
        seen = self.attended
        total, requests = self.layout.rows, seen.query.shape[0]
        keys, _ = self.cache.read(self.layer, total)
        bias = self._bias(self.active[rows], total, causal)
        block = Block(0, rows.numel(), 0, total, bias)
        queries = seen.query[:, :, rows] * seen.scale
        weights = block_probabilities(queries, keys.flatten(0, 1), block, seen.softcap, seen.sinks)
        weights = weights.unflatten(0, (requests, -1))[0].mean(0, dtype=self._mass_dtype)
        return weights @ self.table.averaging.to(weights.dtype)

    def _bias(self, rows: torch.Tensor, total: int, causal: bool) -> torch.Tensor:
        places, window = self.layout.positions, self.attended.window
        keys = torch.arange(total, device=rows.device)
        latest = rows[:, None] if causal else total
        visible = (keys[None] <= latest).expand(rows.numel(), total)
        if window is not None:
            visible = visible & (places[None] > places[rows][:, None] - window)
        return bias_of(visible, self.attended.query.dtype)
