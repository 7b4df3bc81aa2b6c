"""Batched quantized caches: packed rows of several caches, which every read concatenates tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from memory.engine.attention.quantized_attention import supports
from memory.engine.attention.tiled import TILE
from memory.engine.scheduler.batched_cache import BatchedCache, Run, requests_at
from memory.kv_cache.quantization import Packed
from memory.kv_cache.quantized import BLOCK, PAGE, Extent, QuantizedCache

ROWS = 2 * TILE  # rows of a tile, summed over its requests: keys or values, not both
Views = tuple[list[torch.Tensor], ...]  # of codes, scale and bias: each (blocks, rows, numbers), for torch.cat


class BatchedQuantizedCache(BatchedCache[QuantizedCache]):
    """Packed blocks of the members, and a tensor of their last, unpacked rows; a member's ``tail`` is a view of it."""

    def __init__(self, members: Sequence[QuantizedCache], heads: int) -> None:
        super().__init__(members, heads)
        sides, layers, _, kv_heads, _, head_dim = members[0].tail.shape
        self._tails = members[0].tail.new_empty(sides, layers, kv_heads, len(members), PAGE, head_dim)
        self._views = [self._tails[:, :, None, :, i] for i in range(len(members))]
        for member, view in zip(members, self._views, strict=True):
            view.copy_(member.tail[..., :PAGE, :])
            member.tail = view
        self._numbers = torch.arange(len(members), device=self._tails.device)
        self._visible_blocks: dict[int | None, _VisibleBlocks] = {}
        self._current: set[int | None] = set()  # windows whose blocks are up to date for this pass

    @property
    def is_current(self) -> bool:
        """Tell whether every member's ``tail`` is still the view made here; a pass over several rows replaces it."""
        return all(member.tail is view for member, view in zip(self.members, self._views, strict=True))

    def end(self) -> None:
        for member, view in zip(self.members, self._views, strict=True):
            if member.tail is view:
                member.tail = view.clone()

    def begin(self) -> None:
        super().begin()
        self._current.clear()
        device = self._tails.device
        self._packed = torch.tensor([member.packed for member in self.members], device=device)
        self._places = torch.tensor([member.next_position for member in self.members], device=device)
        self._tail_rows = self._places - self._packed

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for k_or_v, x in enumerate((k, v)):
            self._tails[k_or_v, layer][:, self._numbers, self._tail_rows] = x.transpose(0, 1)

    def runs(self, layer: int, k_or_v: int, window: int | None) -> Iterator[tuple[int, int, Run]]:
        blocks = self._blocks(window)
        yield from blocks.runs(layer, k_or_v)
        yield 0, blocks.count * BLOCK, self._tails[k_or_v, layer]

    def visible(self, window: int | None) -> torch.Tensor:
        blocks, places, packed = self._blocks(window), self._places[:, None], self._packed[:, None]
        columns = torch.arange(blocks.count * BLOCK, device=places.device)
        first = torch.tensor([first for first, _ in blocks.spans], device=places.device)[:, None] * BLOCK
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

    def _blocks(self, window: int | None) -> _VisibleBlocks:
        if window not in self._current:
            spans, extents = [_span(member, window) for member in self.members], [m.extents for m in self.members]
            blocks = self._visible_blocks.get(window)
            if blocks is None or not blocks.fits(spans, extents):
                self._visible_blocks[window] = _VisibleBlocks(spans, list(map(list, extents)), self._tails.dtype)
            self._current.add(window)
        return self._visible_blocks[window]


def _span(member: QuantizedCache, window: int | None) -> tuple[int, int]:
    """Return the number of a member's first block with visible packed rows, and the number after the last."""
    last = -(-member.packed // BLOCK)
    return (0 if window is None else min(last, max(0, member.next_position + 1 - window) // BLOCK)), last


@dataclass
class _VisibleBlocks:
    """Blocks with visible rows: a range (``spans``) per member. Every read concatenates views of the blocks."""

    spans: list[tuple[int, int]]
    extents: list[list[Extent]]  # by member
    dtype: torch.dtype  # of the attention
    _views: dict[tuple[int, int], list[tuple[int, int, int, Packed, Views]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = max(last - first for first, last in self.spans)  # number of columns, in blocks
        for extents, (first, last) in zip(self.extents, self.spans, strict=True):
            for extent, start, stop in _parts(extents, first, last):
                if extent.check is not None:
                    extent.check(start, stop)

    def fits(self, spans: list[tuple[int, int]], extents: Sequence[Sequence[Extent]]) -> bool:
        """Tell whether these are still the members' blocks."""
        old, new = ([list(map(id, member)) for member in members] for members in (self.extents, extents))
        return self.spans == spans and old == new

    def runs(self, layer: int, k_or_v: int) -> Iterator[tuple[int, int, Packed]]:
        """Yield the first request and column, and packed rows (requests, kv_heads, rows, head_dim), of every tile."""
        if (layer, k_or_v) not in self._views:
            self._views[layer, k_or_v] = list(self._tiles(layer, k_or_v))
        for first, block, requests, like, views in self._views[layer, k_or_v]:
            tensors = (torch.cat(parts).flatten(0, 1).unflatten(0, (requests, -1)) for parts in views)
            yield first, block * BLOCK, like.with_tensors(*tensors)

    def _tiles(self, layer: int, k_or_v: int) -> Iterator[tuple[int, int, int, Packed, Views]]:
        """Yield the first request and block, the number of requests, a packed part, and the views of every tile."""
        if not self.count:
            return
        counts, block = [last - first for first, last in self.spans], 0
        any_extent = next(extents for extents in self.extents if extents)[0]
        like = (any_extent.k, any_extent.v)[k_or_v][:1, layer]  # (1, kv_heads, BLOCK, head_dim)
        limit = max(1, ROWS // BLOCK // (1 if supports(like, self.dtype) else 2))  # blocks; half if unpacked
        while block < self.count:
            requests = requests_at(counts, block)
            width = min(self.count - block, max(1, limit // requests))
            for first in range(0, requests, limit):
                numbers = range(first, min(requests, first + limit))
                parts = [part for i in numbers for part in self._stored(i, block, width, layer, k_or_v, like)]
                views = tuple(map(list, zip(*(part.tensors for part in parts), strict=True)))
                yield first, block, len(numbers), parts[0], views
            block += width

    def _stored(self, number: int, block: int, width: int, layer: int, k_or_v: int, like: Packed) -> Iterator[Packed]:
        """Yield ``width`` blocks of a member in parts (blocks, kv_heads, BLOCK, head_dim), and zeros after its last."""
        first, last = self.spans[number]
        start, stop = min(last, first + block), min(last, first + block + width)
        for extent, a, b in _parts(self.extents[number], start, stop):
            yield (extent.k, extent.v)[k_or_v][a:b, layer]
        if missing := width - (stop - start):
            yield like.with_tensors(*(x.new_zeros(missing, *x.shape[1:]) for x in like.tensors))


def _parts(extents: Sequence[Extent], first: int, last: int) -> Iterator[tuple[Extent, int, int]]:
    """Yield each extent that has some of a member's blocks ``first:last``, and these blocks' range in the extent."""
    base = 0
    for extent in extents:
        start, stop = max(first - base, 0), min(last - base, extent.blocks)
        if start < stop:
            yield extent, start, stop
        base += extent.blocks
