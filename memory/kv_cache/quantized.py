"""Quantized cache: rows in 4 or 8 bits, of which attention unpacks one tile at a time (Semantic)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.kernels import KEY_MULTIPLE
from memory.engine.attention.observer import AttentionObserver
from memory.engine.attention.tiled import TILE, Tile, reads_packed
from memory.engine.models.model_spec import ModelSpec
from memory.kv_cache.dense import EvictableRows, Rows
from memory.kv_cache.quantization import Packed, PackFormat, pack

BLOCK = 256  # tokens that are stored, checked and moved as one
PAGE = 64  # tokens that are packed as one; the last ones, until there are so many, stay as they are


@dataclass
class Extent:
    """Blocks of packed keys and values, each (blocks, layers, kv_heads, BLOCK, head_dim): from a file, or growing.

    ``check`` is called with the first and last number of the blocks that are about to be read. The first ``taken`` rows
    are in use and never change, so that several caches may share an extent; a cache whose rows end there may extend it.
    """

    k: Packed
    v: Packed
    check: Callable[[int, int], None] | None = None
    taken: int = 0

    @classmethod
    def empty(cls, blocks: int, spec: ModelSpec, format: PackFormat, device: torch.device) -> Extent:
        shape = blocks, spec.layers, spec.kv_heads, BLOCK, spec.head_dim
        return cls(Packed.empty(shape, format, format.keys, device), Packed.empty(shape, format, device=device))

    @property
    def blocks(self) -> int:
        return self.k.codes.shape[0]

    def until(self, last: int) -> Extent:
        """View the blocks in front of ``last``, never to be written to."""
        return Extent(self.k[:last], self.v[:last], self.check, last * BLOCK)

    def copy(self, first: int, last: int) -> Extent:
        """Copy some of the blocks, all rows to be taken; they are checked, since no checksum is left for the copy."""
        if self.check is not None:
            self.check(first, last)
        return Extent(*(one.with_tensors(*(x[first:last].clone() for x in one.tensors)) for one in (self.k, self.v)))

    @property
    def capacity(self) -> int:
        """Rows that have room in it."""
        return self.blocks * BLOCK

    @property
    def row_bytes(self) -> float:
        """Bytes of one row over all layers."""
        return (self.k.nbytes + self.v.nbytes) / self.capacity

    def rows(self, layer: int, start: int, stop: int) -> tuple[Packed, Packed]:
        """View rows ``start:stop`` (at page borders) of one layer, (1, kv_heads, rows, head_dim)."""
        first, last = start // BLOCK, -(-stop // BLOCK)
        if self.check is not None:
            self.check(first, last)
        at = first * BLOCK
        k, v = (_joined(one[first:last, layer]).part(start - at, stop - at) for one in (self.k, self.v))
        return k, v

    def write(self, layers: slice, start: int, k: Packed, v: Packed) -> None:
        """Put packed rows (layers, kv_heads, rows, head_dim) of some layers at row ``start``; both at page borders."""
        done = 0
        while done < k.tokens:
            block, at = divmod(start + done, BLOCK)
            size = min(BLOCK - at, k.tokens - done)
            for own, new in ((self.k, k), (self.v, v)):
                own[block, layers].write(at, new.part(done, done + size))
            done += size


def _joined(packed: Packed) -> Packed:
    """(blocks, kv_heads, BLOCK, head_dim) as one run of tokens, (1, kv_heads, blocks * BLOCK, head_dim)."""
    return packed.with_tensors(*(x.flatten(0, 1)[None] for x in packed.tensors))


def _chained(parts: Sequence[Packed]) -> Packed:
    """Runs of tokens one after another."""
    return parts[0].with_tensors(*(torch.cat(own, -2) for own in zip(*(part.tensors for part in parts), strict=True)))


class QuantizedCache(EvictableRows):
    """One agent's rows: whole pages packed, the last ones as they were computed. Keys are rotated.

    Rows that a retention stage dropped stay where they are, and are left out of every tile.
    """

    tiled = True

    def __init__(
        self, spec: ModelSpec, format: PackFormat, device: torch.device, observer: AttentionObserver | None = None
    ) -> None:
        if PAGE % format.grid(spec.kv_heads * spec.head_dim, format.keys).span:
            raise ConfigError(f"keys packed by channel in groups of {format.group} do not fill pages of {PAGE} tokens")
        super().__init__(observer, device)
        self.spec, self.format, self.device = spec, format, device
        self.extents: list[Extent] = []  # all but the last are full
        self.packed = 0  # rows in the extents
        self.open = self._room(PAGE)  # (2, layers, 1, kv_heads, capacity, head_dim): keys and values behind them
        self._next: torch.Tensor | None = None  # what ``open`` will be when the pass under way has packed pages
        self._new: tuple[torch.Tensor, torch.Tensor] | None = None  # rows of a pass that leaves no trace
        self.live = torch.empty(0, dtype=torch.bool, device=device)  # (positions,)
        self._lasting, self._count = False, 0  # of the pass under way: will it be extended, how many rows has it

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, without room to grow."""
        row = self.extents[0].row_bytes if self.extents else 0.0
        return round(row * self.packed) + (self.next_position - self.packed) * self.spec.bytes_per_token

    def bytes_beside(self, others: Iterable[QuantizedCache]) -> int:
        """Count the bytes of its rows without those in blocks that one of the ``others`` shares."""
        shared = {extent.k.codes.data_ptr() for other in others for extent in other.extents}
        common = (
            extent.row_bytes * min(self.packed - base, extent.capacity)
            for base, extent in self.placed()
            if extent.k.codes.data_ptr() in shared
        )
        return self.nbytes - round(sum(common))

    def placed(self) -> Iterator[tuple[int, Extent]]:
        """Yield each extent, behind the number of its first row."""
        base = 0
        for extent in self.extents:
            yield base, extent
            base += extent.capacity

    def reserve(self, rows: int, lasting: bool = False) -> None:
        """Begin a pass over ``rows`` new rows; only those of a ``lasting`` one will be extended."""
        self._new = self._next = None
        self._lasting, self._count = lasting, rows
        total = self.next_position - self.packed + rows
        if lasting and total > PAGE:
            self._next = self._room(max(PAGE, total % PAGE))
            self._grow(self.packed + total // PAGE * PAGE)

    def end_at(self, rows: int) -> int:
        self.reads.note(rows + self.dropped, rows)
        return rows + KEY_MULTIPLE

    def write(self, layer: int, rows: Rows, k: torch.Tensor, v: torch.Tensor) -> None:
        """Take the pass's ``k``, ``v`` (1, kv_heads, rows, head_dim), keys rotated; pack the pages they fill."""
        used = self.next_position - self.packed
        if not self._lasting:
            self._new = k, v
        elif self._next is None:
            self.open[0, layer, :, :, used : used + k.shape[2]] = k
            self.open[1, layer, :, :, used : used + k.shape[2]] = v
        else:
            both = [torch.cat([self.open[i, layer, :, :, :used], x], 2) for i, x in enumerate((k, v))]
            whole = both[0].shape[2] // PAGE * PAGE
            self._put(slice(layer, layer + 1), *(x[:, :, :whole] for x in both))
            for i, x in enumerate(both):
                self._next[i, layer, :, :, : x.shape[2] - whole] = x[:, :, whole:]

    def tiles(self, layer: int, first: int = 0) -> Iterator[Tile]:
        """Read keys and values (1, kv_heads, n, head_dim) of the live rows and of the pass's own, in order.

        Tiles that lie wholly before row ``first`` are not unpacked: they are zeros that take no room. On a GPU none are
        that hold no dropped rows: a kernel reads them as they are.
        """
        yield from self._lasting_tiles(layer, first, reads_packed(self.device, self.spec.dtype, self.spec.head_dim))
        if self._new is not None:
            yield self._new

    def _lasting_tiles(self, layer: int, first: int = 0, packed: bool = False) -> Iterator[Tile]:
        """Read them without rows that will be deleted, ``packed`` where they may be."""
        used, pages = self.next_position - self.packed, self.packed
        behind = self.open
        if self._next is not None:
            total = used + self._count
            pages, used, behind = pages + total // PAGE * PAGE, total % PAGE, self._next
        elif self._lasting:
            used += self._count
        rows = 0
        for start in range(0, pages, TILE):
            stop = min(pages, start + TILE)
            live = self._live_in(start, stop)
            count = stop - start if live is None else live.numel()
            rows += count
            if rows <= first:
                unseen = behind.new_zeros(1, 1, 1, 1).expand(1, self.spec.kv_heads, count, self.spec.head_dim)
                yield unseen, unseen
            elif packed and live is None:
                yield self._tile(layer, start, stop)
            elif count:
                k, v = (one.unpack(self.spec.dtype) for one in self._tile(layer, start, stop))
                yield (k, v) if live is None else (k[:, :, live], v[:, :, live])
                del k, v
        if used:
            live = self._live_in(pages, pages + used)
            k, v = behind[0, layer, :, :, :used], behind[1, layer, :, :, :used]
            yield (k, v) if live is None else (k[:, :, live], v[:, :, live])

    def extend(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        """Make the rows just written part of the cache."""
        count = positions.numel()
        total = self.next_position - self.packed + count
        if self._next is not None:
            self.open, self._next = self._next, None
            self.packed += total // PAGE * PAGE
        elif total == PAGE:  # all layers at once, and first of all: what cannot be packed leaves the cache as it was
            self._grow(self.packed + PAGE)
            self._put(slice(None), *self.open[:, :, 0, :, :PAGE])
            self.packed += PAGE
        self.live = torch.cat([self.live, self.live.new_ones(count)])
        self._append(positions, logits, token_ids)
        self._lasting, self._count = False, 0

    def erase(self) -> None:
        """Do nothing: no other cache reads these rows."""

    @torch.inference_mode()
    def cut(self, position: int) -> None:
        """Delete everything from ``position`` on. A page that is cut through is unpacked again."""
        if position < self.packed:
            whole = position // PAGE * PAGE
            if position > whole:
                self.open[:, :, :, :, : position - whole] = self._unpacked(whole, position)
            self._shrink(whole)
            self.packed = whole
        self.live = self.live[:position]
        self._lasting, self._count, self._new, self._next = False, 0, None, None
        super().cut(position)

    @torch.inference_mode()
    def drop(self, keep: torch.Tensor) -> None:
        """Leave the live rows where ``keep`` (live rows,) bool is False out of every tile from now on."""
        self.live[self._drop(keep)] = False

    def adopt(self, tokens: Sequence[int], packed: int, dropped: Sequence[int]) -> None:
        """Begin with rows that are in the extents and in ``open`` already."""
        self.tokens, self.packed = list(tokens), packed
        self.live = torch.ones(len(tokens), dtype=torch.bool, device=self.device)
        self.live[torch.tensor(list(dropped), dtype=torch.long, device=self.device)] = False
        self.positions = torch.nonzero(self.live)[:, 0]
        self.exact = min([len(tokens), *dropped])

    @torch.inference_mode()
    def freeze(self) -> None:
        """Make these blocks read-only: forks share the whole ones, and copy the last one if it has room."""
        self._shrink(self.packed)
        for number, (base, extent) in enumerate([*self.placed()]):
            blocks = -(-(self.packed - base) // BLOCK)
            if extent.blocks > blocks:
                self.extents[number] = extent = extent.copy(0, blocks)
            extent.taken = extent.capacity

    @torch.inference_mode()
    def fork(self) -> QuantizedCache:
        """Make another cache that continues from here, without a observer. Packed rows are shared."""
        other = QuantizedCache(self.spec, self.format, self.device)
        other.tokens, other.positions, other.exact = list(self.tokens), self.positions, self.exact
        other.extents, other.packed = list(self.extents), self.packed
        other.open, other.live, other.logits = self.open.clone(), self.live.clone(), self.logits
        return other

    def keys(self, layer: int) -> torch.Tensor:
        """(kv_heads, live rows, head_dim), rotated."""
        return torch.cat([k for k, _ in self._lasting_tiles(layer)], 2)[0]

    def values(self, layer: int) -> torch.Tensor:
        """(kv_heads, live rows, head_dim)."""
        return torch.cat([v for _, v in self._lasting_tiles(layer)], 2)[0]

    def _room(self, rows: int) -> torch.Tensor:
        spec = self.spec
        shape = 2, spec.layers, 1, spec.kv_heads, rows, spec.head_dim
        return torch.zeros(shape, dtype=spec.dtype, device=self.device)

    def _tile(self, layer: int, start: int, stop: int) -> tuple[Packed, Packed]:
        """Packed rows ``start:stop`` of a layer, wherever they lie: tiles, and with them sums, do not depend on it."""
        parts = []
        for base, extent in self.placed():
            first, last = max(start - base, 0), min(stop - base, extent.capacity)
            if first < last:
                parts.append(extent.rows(layer, first, last))
        k, v = (side[0] if len(side) == 1 else _chained(side) for side in zip(*parts, strict=True))
        return k, v

    def _live_in(self, start: int, stop: int) -> torch.Tensor | None:
        """Number the live rows among ``start:stop`` from ``start``; None for all. New rows are live."""
        if not self.dropped:
            return None
        dead = torch.nonzero(~self.live[start:stop])[:, 0]
        if not dead.numel():
            return None
        live = torch.ones(stop - start, dtype=torch.bool, device=self.device)
        live[dead] = False
        return torch.nonzero(live)[:, 0]

    def _grow(self, rows: int) -> None:
        """Take packed rows up to number ``rows``; what there is never moves, but for blocks that others extend."""
        self._shrink(self.packed)
        self._part()
        room = sum(extent.capacity for extent in self.extents)
        if rows > room:
            blocks = max(-(-(rows - room) // BLOCK), min(len(self.extents) * 4, 64), 1)
            self.extents.append(Extent.empty(blocks, self.spec, self.format, self.device))
        for base, extent in self.placed():
            extent.taken = min(rows - base, extent.capacity)

    def _part(self) -> None:
        """Leave the last extent if rows behind ours are taken: share its whole blocks, unless they are few."""
        if not self.extents:
            return
        *_, (base, last) = self.placed()
        start = self.packed - base
        whole, behind = divmod(start, BLOCK)
        if start == last.taken or whole == last.blocks:
            return
        few = last.check is None and 2 * whole < last.blocks
        first = 0 if few else whole
        self.extents[-1:] = [last.until(first)] if first else []
        self.extents += [last.copy(first, whole + (behind > 0))] if first < whole or behind else []

    def _put(self, layers: slice, k: torch.Tensor, v: torch.Tensor) -> None:
        """Pack whole pages (layers, kv_heads, rows, head_dim) behind those there are."""
        packed = pack(k, self.format, self.format.keys), pack(v, self.format)
        done = 0
        for base, extent in self.placed():
            at = self.packed + done - base
            if 0 <= at < extent.capacity and done < k.shape[2]:
                count = min(extent.capacity - at, k.shape[2] - done)
                extent.write(layers, at, *(side.part(done, done + count) for side in packed))
                done += count

    def _unpacked(self, start: int, stop: int) -> torch.Tensor:
        """Unpack rows of one page, (2, layers, 1, kv_heads, rows, head_dim)."""
        layers = [self._tile(layer, start, start + PAGE) for layer in range(self.spec.layers)]
        sides = [torch.stack([pair[side].unpack(self.spec.dtype) for pair in layers]) for side in (0, 1)]
        return torch.stack(sides)[..., : stop - start, :]

    def _shrink(self, rows: int) -> None:
        """Drop the extents that lie wholly behind ``rows``."""
        self.extents = [extent for base, extent in self.placed() if base < rows]
