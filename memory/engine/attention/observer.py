"""Attention observer: records a cache's last queries and the attention that its rows receive, for a retention stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from memory.engine.attention.kernels import AttentionParams, LayerAttention, MaskBlock, block_probabilities

Queries = tuple[torch.Tensor, dict[int, torch.Tensor]]  # positions, and queries by layer


@dataclass(frozen=True, slots=True)
class SummedAttention:
    """Attention of query rows to visible rows, summed over layers and heads."""

    places: torch.Tensor  # (n,) positions of the query rows
    receivers: torch.Tensor  # (m,) positions of the visible rows
    weights: torch.Tensor  # (n, m) float32

    def cut(self, position: int) -> SummedAttention:
        """Return a copy without the rows from ``position`` on."""
        rows, columns = (int(torch.searchsorted(x, position)) for x in (self.places, self.receivers))
        return SummedAttention(self.places[:rows], self.receivers[:columns], self.weights[:rows, :columns].clone())


@dataclass(frozen=True, slots=True)
class WeightCollector:
    """Sum of attention weights over heads, to which one block after another is added."""

    blocks: Sequence[MaskBlock]
    totals: torch.Tensor  # (query rows, key rows) float32
    blocks_done: list[int]  # number of key columns of each block that was added

    def append(self, weights: torch.Tensor) -> None:
        """Add ``weights`` (heads, rows, keys) of the next block."""
        block = self.blocks[len(self.blocks_done)]
        self.blocks_done.append(weights.shape[-1])
        sums, totals = weights.sum(0, dtype=torch.float32), self.totals[block.q0 : block.q1]
        totals[:, : block.prefix] += sums[:, : block.prefix]
        body = sums[:, block.prefix :][:, : totals.shape[1] - block.k0]  # without padding columns
        totals[:, block.k0 : block.k0 + body.shape[1]] += body


class AttentionObserver:
    """Recorder of queries and attention by position while rows are appended to one cache.

    With ``mass`` a query row takes one float32 per visible row that is not evicted, until `cut` deletes the query row.

    :param recent: number of last rows whose queries are kept
    :param mass: whether to add up the attention that every row receives, over layers, heads and query rows
    :param windows: sliding window of each layer, as `ModelSpec.windows`; empty: no layer has one
    """

    def __init__(self, recent: int = 0, mass: bool = False, windows: Sequence[int | None] = ()) -> None:
        self.recent, self.counts_mass, self._windows = recent, mass, windows
        self.places = torch.empty(0, dtype=torch.long)  # positions of the rows whose queries are kept
        self.queries: dict[int, torch.Tensor] = {}  # per layer (heads, kept rows, head_dim), rotated
        self.params: dict[int, AttentionParams] = {}  # per layer: settings of its attention
        self._saved: Queries = self.places, {}  # places and queries at the end of the last turn
        self._attention: list[SummedAttention] = []  # oldest pass first; the running pass adds to the last entry

    @contextmanager
    def observing(self, positions: torch.Tensor, count: int) -> Iterator[None]:
        """Observe a pass as in `begin`; if the body fails, the pass leaves no record."""
        before = self.places, dict(self.queries)
        self.begin(positions, count)
        try:
            yield
        except BaseException:
            self.places, self.queries = before
            self._remove_from(int(positions[-count]))
            raise

    def begin(self, positions: torch.Tensor, count: int) -> None:
        """Begin a pass that computes the last ``count`` of the rows at ``positions``."""
        new = positions[-count:]
        self.places = torch.cat([self.places.to(positions), new])[-self.recent or positions.numel() :]
        if self.counts_mass:
            self._remove_from(int(new[0]))  # left by a pass that failed after `observing`, e.g. in the head
            self._attention.append(SummedAttention(new, positions, _zeros(positions, count, positions.numel())))

    def collector(self, blocks: Sequence[MaskBlock]) -> WeightCollector | None:
        """Return a collector for one layer of this pass; None unless attention is added up."""
        if not self.counts_mass:
            return None
        return WeightCollector(blocks, self._attention[-1].weights, [])

    def on_queries(self, layer: int, query: torch.Tensor) -> None:
        """Ignore unrotated queries: `record` keeps the rotated ones."""

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        """Compute the attention of a layer and record it."""
        collector = None if attention.keys is None else self.collector(attention.blocks)
        out = attention.output(collector)
        self.record(attention, collector)
        return out

    def record(self, attention: LayerAttention, collector: WeightCollector | None) -> None:
        """Record a layer's last queries; if ``collector`` has received no weights, compute them for it."""
        layer, query, params = attention.layer, attention.query, attention.params
        self.params[layer] = replace(params, window=self._windows[layer] if self._windows else None)
        if self.recent:
            new = query[0, :, -self.recent :]
            old = self.queries.get(layer)
            queries = new if old is None else torch.cat([old, new], 1)
            self.queries[layer] = queries[:, -self.places.numel() :].clone()
        if collector is None or collector.blocks_done:
            return
        for block in collector.blocks:
            keys = block.take(attention.keys[0])
            collector.append(block_probabilities(query * params.scale, keys, block, params.softcap, params.sinks))

    def mass(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the attention (rows,) in float32 that the rows at ``positions`` have received."""
        total = _zeros(positions, int(positions[-1]) + 1 if positions.numel() else 0)
        for attention in self._attention:
            inside = attention.receivers < total.numel()
            total.index_add_(0, attention.receivers[inside], attention.weights[:, inside].sum(0))
        return total[positions]

    def save_queries(self) -> None:
        """Save the last queries at the end of a turn, so that `cut` can restore them once later rows displaced them."""
        self._saved = self.places, dict(self.queries)

    def cut(self, position: int) -> None:
        """Delete the rows from ``position`` on, and their attention."""
        places, queries = self._saved = _before(position, *self._saved)
        self.places, self.queries = _before(position, self.places, self.queries)
        if places.numel() and not (self.places == places[0]).any():  # deleted rows had displaced saved ones
            older = places < self.places[0] if self.places.numel() else places < position
            self.places = torch.cat([places[older], self.places])[-self.recent :]
            for layer, earlier in queries.items():
                joined = torch.cat([earlier[:, older], self.queries[layer]], 1)
                self.queries[layer] = joined[:, -self.places.numel() :].clone()
        self._remove_from(position)

    def drop(self, live: torch.Tensor) -> None:
        """Keep only the rows at positions ``live`` as receivers; the attention that evicted rows paid to them stays."""
        if not self._attention:
            return
        places = torch.cat([attention.places for attention in self._attention])
        weights, first = _zeros(live, places.numel(), live.numel()), 0
        for attention in self._attention:
            last, columns = first + attention.places.numel(), torch.searchsorted(attention.receivers, live)
            known = torch.nonzero(torch.isin(live, attention.receivers))[:, 0]
            weights[first:last, known] = attention.weights[:, columns[known]]
            first = last
        self._attention = [SummedAttention(places, live, weights)]

    def _remove_from(self, position: int) -> None:
        while self._attention and int(self._attention[-1].places[-1]) >= position:
            last = self._attention.pop()
            if int(last.places[0]) < position:
                self._attention.append(last.cut(position))


def _zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=like.device)


def _before(position: int, places: torch.Tensor, queries: dict[int, torch.Tensor]) -> Queries:
    """Return ``places`` and ``queries`` without the rows from ``position`` on."""
    mask = places < position
    return places[mask], {layer: rows[:, mask] for layer, rows in queries.items()}
