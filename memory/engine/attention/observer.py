"""Attention observer: a cache's late queries, and the attention its rows received, for a retention stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from memory.engine.attention.kernels import AttentionParams, Block, LayerAttention, block_probabilities

Sight = tuple[torch.Tensor, dict[int, torch.Tensor]]  # positions and queries of an observer


@dataclass(frozen=True, slots=True)
class GivenAttention:
    """The attention that some rows gave to the rows they saw, summed over layers and heads."""

    places: torch.Tensor  # (n,) positions of those that gave
    receivers: torch.Tensor  # (m,) positions of those that received
    weights: torch.Tensor  # (n, m) float32

    def before(self, position: int) -> GivenAttention:
        """Without the rows from ``position`` on."""
        rows, columns = (int(torch.searchsorted(x, position)) for x in (self.places, self.receivers))
        return GivenAttention(self.places[:rows], self.receivers[:columns], self.weights[:rows, :columns].clone())


@dataclass(frozen=True, slots=True)
class Columns:
    """Takes the weights of one block after another and adds up their sums over heads."""

    blocks: Sequence[Block]
    totals: torch.Tensor  # (query rows, key rows) float32
    blocks_done: list[int]  # how many blocks have come

    def append(self, weights: torch.Tensor) -> None:
        """``weights`` (heads, rows, keys) of the next block."""
        block = self.blocks[len(self.blocks_done)]
        self.blocks_done.append(weights.shape[-1])
        sums, totals = weights.sum(0, dtype=torch.float32), self.totals[block.q0 : block.q1]
        totals[:, : block.prefix] += sums[:, : block.prefix]
        body = sums[:, block.prefix :][:, : totals.shape[1] - block.k0]  # the columns behind the last row are padding
        totals[:, block.k0 : block.k0 + body.shape[1]] += body


class AttentionObserver:
    """Records queries and attention while rows are appended to one cache; its records are by position, not row.

    Attention is kept by the row that gave it, so that rows which are taken back take back what they gave as well. That
    is one float32 for every row computed and live row it saw: less than their keys and values, unless most of a long
    prompt stays live.

    :param recent: of so many last rows the queries are kept
    :param mass: whether to add up the attention every row receives, over layers, heads and querying rows
    :param windows: per layer its sliding window, as `ModelSpec.windows`; empty: no layer has one
    """

    def __init__(self, recent: int = 0, mass: bool = False, windows: Sequence[int | None] = ()) -> None:
        self.recent, self.wants_mass, self._windows = recent, mass, windows
        self.places = torch.empty(0, dtype=torch.long)  # positions of the rows whose queries are kept
        self.queries: dict[int, torch.Tensor] = {}  # per layer (heads, kept rows, head_dim), rotated
        self.params: dict[int, AttentionParams] = {}  # per layer: how it turns scores into weights
        self._settled: Sight = self.places, {}  # what was seen when a turn was over
        self._attention: list[GivenAttention] = []  # in order; the last one grows while its pass is under way

    @contextmanager
    def watching(self, positions: torch.Tensor, count: int) -> Iterator[None]:
        """A pass as `begin` takes it; one that fails, when some layers have seen it and others not, leaves no trace."""
        before = self.places, dict(self.queries)
        self.begin(positions, count)
        try:
            yield
        except BaseException:
            self.places, self.queries = before
            self._take_back(int(positions[-count]))
            raise

    def begin(self, positions: torch.Tensor, count: int) -> None:
        """A pass over the last ``count`` of the rows at ``positions`` begins."""
        new = positions[-count:]
        self.places = torch.cat([self.places.to(positions), new])[-self.recent or positions.numel() :]
        if self.wants_mass:
            self._take_back(int(new[0]))  # of a pass over the same rows that never became part of the cache
            self._attention.append(GivenAttention(new, positions, _zeros(positions, count, positions.numel())))

    def columns(self, blocks: Sequence[Block]) -> Columns | None:
        """Return the collector of this pass's weights, None without attention mass."""
        if not self.wants_mass:
            return None
        return Columns(blocks, self._attention[-1].weights, [])

    def before(self, layer: int, query: torch.Tensor) -> None:
        """Ignore unrotated queries."""

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        """Compute the attention of a layer and record it."""
        columns = None if attention.keys is None else self.columns(attention.blocks)
        out = attention.output(columns)
        self.record(attention, columns)
        return out

    def record(self, attention: LayerAttention, columns: Columns | None) -> None:
        """Record a layer's late queries, and fill ``columns`` where the kernel has not kept its weights."""
        layer, query, params = attention.layer, attention.query, attention.params
        self.params[layer] = replace(params, window=self._windows[layer] if self._windows else None)
        if self.recent:
            new = query[0, :, -self.recent :]
            old = self.queries.get(layer)
            queries = new if old is None else torch.cat([old, new], 1)
            self.queries[layer] = queries[:, -self.places.numel() :].clone()
        if columns is None or columns.blocks_done:
            return
        for block in columns.blocks:
            keys = block.take(attention.keys[0])
            columns.append(block_probabilities(query * params.scale, keys, block, params.softcap, params.sinks))

    def mass(self, positions: torch.Tensor) -> torch.Tensor:
        """(rows,) float32 attention that the rows at ``positions`` received from all rows that were not taken back."""
        total = _zeros(positions, int(positions[-1]) + 1 if positions.numel() else 0)
        for attention in self._attention:
            inside = attention.receivers < total.numel()
            total.index_add_(0, attention.receivers[inside], attention.weights[:, inside].sum(0))
        return total[positions]

    def settle(self) -> None:
        """A turn is over: should rows be taken back that come from here on, these are the last queries again."""
        self._settled = self.places, dict(self.queries)

    def cut(self, position: int) -> None:
        """Forget the rows from ``position`` on, and what they gave to others."""
        places, queries = self._settled = _before(position, *self._settled)
        self.places, self.queries = _before(position, self.places, self.queries)
        if places.numel() and not (self.places == places[0]).any():  # rows that are gone had taken the room of these
            older = places < self.places[0] if self.places.numel() else places < position
            self.places = torch.cat([places[older], self.places])[-self.recent :]
            for layer, earlier in queries.items():
                joined = torch.cat([earlier[:, older], self.queries[layer]], 1)
                self.queries[layer] = joined[:, -self.places.numel() :].clone()
        self._take_back(position)

    def drop(self, live: torch.Tensor) -> None:
        """Only the rows at positions ``live`` are left to receive; what the others gave them stays."""
        if not self._attention:
            return
        places = torch.cat([attention.places for attention in self._attention])
        weights, first = _zeros(live, places.numel(), live.numel()), 0
        for attention in self._attention:
            last, columns = first + attention.places.numel(), torch.searchsorted(attention.receivers, live)
            known = torch.nonzero(torch.isin(live, attention.receivers))[:, 0]
            weights[first:last, known] = attention.weights[:, columns[known]]
            first = last
        self._attention = [GivenAttention(places, live, weights)]

    def _take_back(self, position: int) -> None:
        """Attention given by the rows from ``position`` on has not been given."""
        while self._attention and int(self._attention[-1].places[-1]) >= position:
            last = self._attention.pop()
            if int(last.places[0]) < position:
                self._attention.append(last.before(position))


def _zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=like.device)


def _before(position: int, places: torch.Tensor, queries: dict[int, torch.Tensor]) -> Sight:
    """Without the rows from ``position`` on."""
    mask = places < position
    return places[mask], {layer: rows[:, mask] for layer, rows in queries.items()}
