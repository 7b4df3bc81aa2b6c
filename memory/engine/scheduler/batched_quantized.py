"""Rows of several packed caches side by side: bytes are joined tile by tile, when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from memory.engine.attention.quantized_attention import takes
from memory.engine.attention.tiled import TILE
from memory.engine.scheduler.batched_cache import BatchedCache, Run, requests_at
from memory.kv_cache.quantization import Packed
from memory.kv_cache.quantized import BLOCK, PAGE, Extent, QuantizedCache

ROWS = 2 * TILE  # of all requests in a tile of keys or of values: alone, a tile is TILE rows of both
Views = tuple[list[torch.Tensor], ...]  # of codes, scale and bias: each (blocks, rows, numbers), for torch.cat


class BatchedQuantizedCache(BatchedCache[QuantizedCache]):
    """Packed blocks of the members, and behind them one tensor with the last rows of all.

    As long as a cache is a member, its ``open`` rows are a view of that tensor.
    """

    def __init__(self, members: Sequence[QuantizedCache], heads: int) -> None:
        super().__init__(members, heads)
        sides, layers, _, kv_heads, _, head_dim = members[0].open.shape
        self._tails = members[0].open.new_empty(sides, layers, kv_heads, len(members), PAGE, head_dim)
        self._views = [self._tails[:, :, None, :, i] for i in range(len(members))]
        for member, view in zip(members, self._views, strict=True):
            view.copy_(member.open[..., :PAGE, :])
            member.open = view
        self._numbers = torch.arange(len(members), device=self._tails.device)
        self._sights: dict[int | None, _Sight] = {}
        self._current: set[int | None] = set()  # windows whose sight is that of the pass under way

    @property
    def whole(self) -> bool:
        """Whether the members' last rows still lie here: a pass over more of them takes them elsewhere."""
        return all(member.open is view for member, view in zip(self.members, self._views, strict=True))

    def end(self) -> None:
        for member, view in zip(self.members, self._views, strict=True):
            if member.open is view:
                member.open = view.clone()

    def begin(self) -> None:
        super().begin()
        self._current.clear()
        device = self._tails.device
        self._packed = torch.tensor([member.packed for member in self.members], device=device)
        self._places = torch.tensor([member.next_position for member in self.members], device=device)
        self._tail_rows = self._places - self._packed

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for side, x in enumerate((k, v)):
            self._tails[side, layer][:, self._numbers, self._tail_rows] = x.transpose(0, 1)

    def runs(self, layer: int, side: int, window: int | None) -> Iterator[tuple[int, int, Run]]:
        sight = self._sight(window)
        yield from sight.runs(layer, side)
        yield 0, sight.blocks * BLOCK, self._tails[side, layer]

    def visible(self, window: int | None) -> torch.Tensor:
        sight, places, packed = self._sight(window), self._places[:, None], self._packed[:, None]
        columns = torch.arange(sight.blocks * BLOCK, device=places.device)
        first = torch.tensor([first for first, _ in sight.spans], device=places.device)[:, None] * BLOCK
        front, tail = first + columns, packed + torch.arange(PAGE, device=places.device)
        rows = torch.cat([front, tail], 1)
        visible = torch.cat([front < packed, tail <= places], 1)
        if window is not None:
            visible &= rows > places - window
        for number, member in enumerate(self.members):
            if member.dropped:
                live = torch.cat([member.live, member.live.new_ones(1)])
                visible[number] &= live[rows[number].clamp(max=live.numel() - 1)]
        return visible

    def _sight(self, window: int | None) -> _Sight:
        if window not in self._current:
            spans = [_span(member, window) for member in self.members]
            extents = [member.extents for member in self.members]
            sight = self._sights.get(window)
            if sight is None or not sight.fits(spans, extents):
                self._sights[window] = _Sight(
                    spans, [list(extents_of_member) for extents_of_member in extents], self._tails.dtype
                )
            self._current.add(window)
        return self._sights[window]


def _span(member: QuantizedCache, window: int | None) -> tuple[int, int]:
    """First and last number of the blocks that hold packed rows in sight."""
    last = -(-member.packed // BLOCK)
    return (0 if window is None else min(last, max(0, member.next_position + 1 - window) // BLOCK)), last


@dataclass
class _Sight:
    """Blocks ``spans`` of every member; the views of them serve until another block is in sight."""

    spans: list[tuple[int, int]]
    extents: list[list[Extent]]  # by member
    dtype: torch.dtype  # of what is computed
    _views: dict[tuple[int, int], list[tuple[int, int, int, Packed, Views]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for extents, (first, last) in zip(self.extents, self.spans, strict=True):
            for extent, start, stop in _parts(extents, first, last):
                if extent.check is not None:
                    extent.check(start, stop)

    @property
    def blocks(self) -> int:
        """Columns of the longest, in blocks."""
        return max(last - first for first, last in self.spans)

    def fits(self, spans: list[tuple[int, int]], extents: Sequence[Sequence[Extent]]) -> bool:
        """Whether the members still are what this was made of."""
        return self.spans == spans and all(
            len(old) == len(new) and all(x is y for x, y in zip(old, new, strict=True))
            for old, new in zip(self.extents, extents, strict=True)
        )

    def runs(self, layer: int, side: int) -> Iterator[tuple[int, int, Packed]]:
        """First request and column, and packed rows (requests, kv_heads, rows, head_dim) of one tile after another."""
        if (layer, side) not in self._views:
            self._views[layer, side] = list(self._tiles(layer, side))
        for first, block, requests, like, views in self._views[layer, side]:
            tensors = (torch.cat(parts).flatten(0, 1).unflatten(0, (requests, -1)) for parts in views)
            yield first, block * BLOCK, like.with_tensors(*tensors)

    def _tiles(self, layer: int, side: int) -> Iterator[tuple[int, int, int, Packed, Views]]:
        """First request and block, requests, a packed run to be like, and the views to join."""
        counts, block = [last - first for first, last in self.spans], 0
        most = self._room(layer, side) if self.blocks else 0
        while block < self.blocks:
            requests = requests_at(counts, block)
            width = min(self.blocks - block, max(1, most // requests))
            for first in range(0, requests, most):
                numbers = range(first, min(requests, first + most))
                parts = [part for i in numbers for part in self._stored(i, block, width, layer, side)]
                views = tuple(map(list, zip(*(part.tensors for part in parts), strict=True)))
                yield first, block, len(numbers), parts[0], views
            block += width

    def _room(self, layer: int, side: int) -> int:
        """Blocks of a tile: half as many where it is unpacked, which takes as much again in float32."""
        return max(1, ROWS // BLOCK // (1 if takes(self._some(layer, side), self.dtype) else 2))

    def _stored(self, number: int, block: int, width: int, layer: int, side: int) -> Iterator[Packed]:
        """``width`` blocks of a member, (blocks, kv_heads, BLOCK, head_dim) each part; zeros where it has no more."""
        first, last = self.spans[number]
        start, stop = min(last, first + block), min(last, first + block + width)
        for extent, a, b in _parts(self.extents[number], start, stop):
            yield (extent.k, extent.v)[side][a:b, layer]
        if stop - start < width:
            like = self._some(layer, side)
            missing = width - (stop - start)
            yield like.with_tensors(*(x.new_zeros(missing, *x.shape[1:]) for x in like.tensors))

    def _some(self, layer: int, side: int) -> Packed:
        """Any block, (1, kv_heads, BLOCK, head_dim)."""
        extent = next(extents for extents in self.extents if extents)[0]
        return (extent.k, extent.v)[side][:1, layer]


def _parts(extents: Sequence[Extent], first: int, last: int) -> Iterator[tuple[Extent, int, int]]:
    """Blocks ``first:last`` of a member: the extents they lie in, and their numbers there."""
    base = 0
    for extent in extents:
        start, stop = max(first - base, 0), min(last - base, extent.blocks)
        if start < stop:
            yield extent, start, stop
        base += extent.blocks
