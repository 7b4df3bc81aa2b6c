"""Layouts and probes for testing stages without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from memory.kv_cache.block import KVBlock
from memory.prompt.layout import Layout, Placement, SegmentSpan, Unit


def block(tokens: int, layers: int = 4, name: str = "block") -> KVBlock:
    k = torch.randn(layers, 2, tokens, 4)
    return KVBlock(name, k, torch.randn_like(k))


def make_layout(lengths: Sequence[int], fresh: Sequence[int] = (), context: int = 1, query: int = 3) -> Layout:
    """Lay out ``[context][one segment per length][query]``; the segments numbered in ``fresh`` have no block."""
    placements, spans, row = [], [], context
    segment_of, is_fresh = [-1] * context, [False] * context
    for number, length in enumerate(lengths):
        unit = Unit.of("segment", [(f"s{number}", range(row, row + length))])
        placements.append(Placement(unit, row, None if number in fresh else block(length)))
        spans.append(SegmentSpan(f"s{number}", row, row + length))
        segment_of += [number] * length
        is_fresh += [number in fresh] * length
        row += length
    rows = row + query
    return Layout(
        token_ids=torch.arange(rows),
        positions=torch.arange(rows),
        context=context,
        query=row,
        placements=tuple(placements),
        segments=tuple(spans),
        segment_of=torch.tensor(segment_of + [-1] * query),
        fresh=torch.tensor(is_fresh + [True] * query),
    )


def mark_exact(layout: Layout, *units: int) -> Layout:
    return replace(layout, placements=tuple(replace(p, exact=n in units) for n, p in enumerate(layout.placements)))


class MatrixProbe:
    """Probe over a matrix of attention weights (rows, rows), computed by loops."""

    def __init__(self, layout: Layout, weights: torch.Tensor, later: torch.Tensor, layer: int) -> None:
        self.layout, self.weights, self.later, self.layer = layout, weights, later, layer
        self.hops: int | None = None
        self.edges: list[tuple[int, int, float]] = []

    def _mass(self, rows: Sequence[int], weights: torch.Tensor) -> torch.Tensor:
        masses = []
        for span in self.layout.segments:
            total = sum(float(weights[row, column]) for row in rows for column in range(span.start, span.stop))
            masses.append(total / len(rows) / (span.stop - span.start))
        return torch.tensor(masses, dtype=torch.float64)

    def peak_from_query(self) -> torch.Tensor:
        return self.mass_from_query() / self.mass_from_query().sum()

    def mass_from_query(self) -> torch.Tensor:
        return self._mass(range(self.layout.query, self.layout.rows), self.weights)

    def mass_between(self, segments: torch.Tensor, causal: bool = True) -> torch.Tensor:
        weights = self.weights if causal else self.later
        spans = [self.layout.segments[segment] for segment in segments.tolist()]
        return torch.stack([self._mass(range(span.start, span.stop), weights) for span in spans])

    def report(self, hops: int, edges: Sequence[tuple[int, int, float]] = ()) -> None:
        self.hops, self.edges = hops, list(edges)
