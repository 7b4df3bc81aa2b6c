"""Quantized cache: rows in 4 or 8 bits; attention unpacks one tile at a time, as in "Agent Memory Below the Prompt"."""

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

BLOCK = 256  # tokens that are stored, checked and moved together
PAGE = 64  # tokens that are packed together; an incomplete last page stays unpacked


@dataclass
class Extent:
    """Successive packed blocks, in a file or in memory: ``k``, ``v`` (blocks, layers, kv_heads, BLOCK, head_dim) each.

    ``check(first, last)`` is called before blocks ``first:last`` are read. Several caches may share an extent,
    because its first ``used_rows`` rows never change. A cache that has exactly these rows may write rows after them.
    """

    k: Packed
    v: Packed
    check: Callable[[int, int], None] | None = None
    used_rows: int = 0

    @classmethod
    def empty(cls, blocks: int, spec: ModelSpec, format: PackFormat, device: torch.device) -> Extent:
        shape = blocks, spec.layers, spec.kv_heads, BLOCK, spec.head_dim
        return cls(Packed.empty(shape, format, format.keys, device), Packed.empty(shape, format, device=device))

    @property
    def blocks(self) -> int:
        return self.k.codes.shape[0]

    def first_blocks(self, last: int) -> Extent:
        """View the blocks before ``last``, read-only."""
        return Extent(self.k[:last], self.v[:last], self.check, last * BLOCK)

    def copy(self, first: int, last: int) -> Extent:
        """Copy blocks ``first:last`` after checking them, because the copy has no checksum."""
        if self.check is not None:
            self.check(first, last)
        return Extent(*(side.map(lambda x: x[first:last].clone()) for side in (self.k, self.v)))

    @property
    def capacity(self) -> int:  # in rows
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
        start, stop = start - first * BLOCK, stop - first * BLOCK
        sides = (side[first:last, layer].map(lambda x: x.flatten(0, 1)[None]) for side in (self.k, self.v))
        k, v = (side.part(start, stop) for side in sides)  # the blocks are joined to one run of tokens
        return k, v

    def write(self, layers: slice, start: int, k: Packed, v: Packed) -> None:
        """Put packed rows (layers, kv_heads, rows, head_dim) at row ``start``; start and stop are at page borders."""
        done = 0
        while done < k.tokens:
            block, at = divmod(start + done, BLOCK)
            size = min(BLOCK - at, k.tokens - done)
            for side, new in ((self.k, k), (self.v, v)):
                side[block, layers].write(at, new.part(done, done + size))
            done += size


def _join(parts: Sequence[Packed]) -> Packed:
    """Concatenate packed rows, each (1, kv_heads, rows, head_dim), along the rows."""
    return parts[0].with_tensors(*(torch.cat(x, -2) for x in zip(*(part.tensors for part in parts), strict=True)))


class QuantizedCache(EvictableRows):
    """One agent's rows: whole pages are packed, the last rows stay as they were computed. Keys are rotated.

    Rows that a retention stage dropped stay in place, and are left out of every tile.
    """

    tiled = True

    def __init__(
        self, spec: ModelSpec, format: PackFormat, device: torch.device, observer: AttentionObserver | None = None
    ) -> None:
        if PAGE % format.grid(spec.kv_heads * spec.head_dim, format.keys).span:
            raise ConfigError(f"groups of {format.group} keys by channel do not fill pages of {PAGE} rows: use {PAGE}")
        super().__init__(observer, device)
        self.spec, self.format, self.device = spec, format, device
        self.extents: list[Extent] = []  # all but the last are full
        self.packed = 0  # rows in the extents
        self.tail = self._empty_rows(PAGE)  # (2, layers, 1, kv_heads, capacity, head_dim): k, v of the last rows
        self._next: torch.Tensor | None = None  # replaces ``tail`` after the current pass, if the pass fills a page
        self._new: tuple[torch.Tensor, torch.Tensor] | None = None  # one layer's new k and v, if they are not kept
        self.live = torch.empty(0, dtype=torch.bool, device=device)  # (positions,) not dropped
        self._keep, self._count = False, 0  # whether `extend` will store the current pass's rows, and their number

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, without room to grow."""
        row = self.extents[0].row_bytes if self.extents else 0.0
        return round(row * self.packed) + (self.next_position - self.packed) * self.spec.bytes_per_token

    def unshared_bytes(self, caches: Iterable[QuantizedCache]) -> int:
        """Count the bytes of the rows, except rows in extents that one of the ``caches`` shares."""
        pointers = {extent.k.codes.data_ptr() for cache in caches for extent in cache.extents}
        shared = (
            extent.row_bytes * min(self.packed - base, extent.capacity)
            for base, extent in self.bases()
            if extent.k.codes.data_ptr() in pointers
        )
        return self.nbytes - round(sum(shared))

    def bases(self) -> Iterator[tuple[int, Extent]]:
        """Yield the number of each extent's first row, and the extent."""
        base = 0
        for extent in self.extents:
            yield base, extent
            base += extent.capacity

    def reserve(self, rows: int, keep: bool = False) -> None:
        """Begin a pass over ``rows`` new rows; with ``keep``, `extend` will make them part of the cache."""
        self._new = self._next = None
        self._keep, self._count = keep, rows
        total = self.next_position - self.packed + rows
        if keep and total > PAGE:
            self._next = self._empty_rows(max(PAGE, total % PAGE))
            self._grow(self.packed + total // PAGE * PAGE)

    def end_at(self, rows: int) -> int:
        self.reads.add(rows + self.dropped, rows)
        return rows + KEY_MULTIPLE

    def write(self, layer: int, rows: Rows, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the pass's rotated keys and values, (1, kv_heads, rows, head_dim) each; pack pages that are full."""
        rows = self.next_position - self.packed
        if not self._keep:
            self._new = k, v
        elif self._next is None:
            for i, x in enumerate((k, v)):
                self.tail[i, layer, :, :, rows : rows + x.shape[2]] = x
        else:
            sides = [torch.cat([self.tail[i, layer, :, :, :rows], x], 2) for i, x in enumerate((k, v))]
            whole = sides[0].shape[2] // PAGE * PAGE
            self._put(slice(layer, layer + 1), *(x[:, :, :whole] for x in sides))
            for i, x in enumerate(sides):
                self._next[i, layer, :, :, : x.shape[2] - whole] = x[:, :, whole:]

    def tiles(self, layer: int, first: int = 0) -> Iterator[Tile]:
        """Yield keys and values (1, kv_heads, n, head_dim) of the live rows and then of the current pass's rows.

        Tiles before row ``first`` are zeros that take no memory. For the Triton kernel, tiles without dropped rows stay
        packed.
        """
        yield from self._kept_tiles(layer, first, reads_packed(self.device, self.spec.dtype, self.spec.head_dim))
        if self._new is not None:
            yield self._new

    def _kept_tiles(self, layer: int, first: int = 0, packed: bool = False) -> Iterator[Tile]:
        """Yield tiles of stored rows and of new rows to keep; if ``packed``, tiles without dropped rows stay packed."""
        open_rows, pages, tail = self.next_position - self.packed, self.packed, self.tail
        if self._next is not None:
            total = open_rows + self._count
            pages, open_rows, tail = pages + total // PAGE * PAGE, total % PAGE, self._next
        elif self._keep:
            open_rows += self._count
        rows = 0
        for start in range(0, pages, TILE):
            stop = min(pages, start + TILE)
            live = self._live_rows(start, stop)
            count = stop - start if live is None else live.numel()
            rows += count
            if rows <= first:
                zeros = tail.new_zeros(1, 1, 1, 1).expand(1, self.spec.kv_heads, count, self.spec.head_dim)
                yield zeros, zeros
            elif packed and live is None:
                yield self._tile(layer, start, stop)
            elif count:
                k, v = (side.unpack(self.spec.dtype) for side in self._tile(layer, start, stop))
                yield (k, v) if live is None else (k[:, :, live], v[:, :, live])
                del k, v
        if open_rows:
            live = self._live_rows(pages, pages + open_rows)
            k, v = tail[0, layer, :, :, :open_rows], tail[1, layer, :, :, :open_rows]
            yield (k, v) if live is None else (k[:, :, live], v[:, :, live])

    def extend(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        """Add to the cache the rows that the pass has just written."""
        count = positions.numel()
        total = self.next_position - self.packed + count
        if self._next is not None:
            self.tail, self._next = self._next, None
            self.packed += total // PAGE * PAGE
        elif total == PAGE:  # pack all layers before changing anything: an error then leaves the cache as it was
            self._grow(self.packed + PAGE)
            self._put(slice(None), *self.tail[:, :, 0, :, :PAGE])
            self.packed += PAGE
        self.live = torch.cat([self.live, self.live.new_ones(count)])
        self._append(positions, logits, token_ids)
        self._keep, self._count = False, 0

    def erase(self) -> None:
        """Change nothing: no other cache reads the rows of this one."""

    @torch.inference_mode()
    def cut(self, position: int) -> None:
        """Delete all tokens and rows from ``position`` on. The remaining rows of a cut page are unpacked."""
        if position < self.packed:
            whole = position // PAGE * PAGE
            if position > whole:
                self.tail[:, :, :, :, : position - whole] = self._unpacked(whole, position)
            self._shrink(whole)
            self.packed = whole
        self.live = self.live[:position]
        self._keep, self._count, self._new, self._next = False, 0, None, None
        super().cut(position)

    @torch.inference_mode()
    def drop(self, keep: torch.Tensor) -> None:
        """Drop the live rows where ``keep``, (live rows,) bool, is False: later tiles do not have them."""
        self.live[self._drop(keep)] = False

    def adopt(self, tokens: Sequence[int], packed: int, dropped: Sequence[int]) -> None:
        """Begin with rows that are already stored: ``packed`` rows in the extents, and the other rows in ``tail``."""
        self.tokens, self.packed = list(tokens), packed
        self.live = torch.ones(len(tokens), dtype=torch.bool, device=self.device)
        self.live[torch.tensor(list(dropped), dtype=torch.long, device=self.device)] = False
        self.positions = torch.nonzero(self.live)[:, 0]
        self.exact = min([len(tokens), *dropped])

    @torch.inference_mode()
    def freeze(self) -> None:
        """Make all blocks read-only: forks share full ones, and copy an incomplete last one before they extend it."""
        self._shrink(self.packed)
        for number, (base, extent) in enumerate([*self.bases()]):
            blocks = -(-(self.packed - base) // BLOCK)
            if extent.blocks > blocks:
                self.extents[number] = extent = extent.copy(0, blocks)
            extent.used_rows = extent.capacity

    @torch.inference_mode()
    def fork(self) -> QuantizedCache:
        """Make another cache that continues from here, without an observer. Packed rows are shared."""
        fork = QuantizedCache(self.spec, self.format, self.device)
        fork.tokens, fork.positions, fork.exact = list(self.tokens), self.positions, self.exact
        fork.extents, fork.packed = list(self.extents), self.packed
        fork.tail, fork.live, fork.logits = self.tail.clone(), self.live.clone(), self.logits
        return fork

    def keys(self, layer: int) -> torch.Tensor:
        """Return keys (kv_heads, live rows, head_dim), rotated."""
        return torch.cat([k for k, _ in self._kept_tiles(layer)], 2)[0]

    def values(self, layer: int) -> torch.Tensor:
        """Return values (kv_heads, live rows, head_dim)."""
        return torch.cat([v for _, v in self._kept_tiles(layer)], 2)[0]

    def _empty_rows(self, rows: int) -> torch.Tensor:
        spec = self.spec
        shape = 2, spec.layers, 1, spec.kv_heads, rows, spec.head_dim
        return torch.zeros(shape, dtype=spec.dtype, device=self.device)

    def _tile(self, layer: int, start: int, stop: int) -> tuple[Packed, Packed]:
        """Return packed rows ``start:stop`` of a layer, joined from all extents that have some of these rows."""
        parts = []
        for base, extent in self.bases():
            first, last = max(start - base, 0), min(stop - base, extent.capacity)
            if first < last:
                parts.append(extent.rows(layer, first, last))
        k, v = (side[0] if len(side) == 1 else _join(side) for side in zip(*parts, strict=True))
        return k, v

    def _live_rows(self, start: int, stop: int) -> torch.Tensor | None:
        """Return the live rows of ``start:stop``, numbered from ``start``; None if all are live. New rows are live."""
        if not self.dropped:
            return None
        live = torch.ones(stop - start, dtype=torch.bool, device=self.device)
        stored = self.live[start:stop]
        live[: stored.numel()] = stored
        return None if bool(live.all()) else torch.nonzero(live)[:, 0]

    def _grow(self, rows: int) -> None:
        """Make room for ``rows`` packed rows in all; only blocks that another cache has extended are copied."""
        self._shrink(self.packed)
        self._unshare_last_extent()
        room = sum(extent.capacity for extent in self.extents)
        if rows > room:
            blocks = max(-(-(rows - room) // BLOCK), min(len(self.extents) * 4, 64), 1)
            self.extents.append(Extent.empty(blocks, self.spec, self.format, self.device))
        for base, extent in self.bases():
            extent.used_rows = min(rows - base, extent.capacity)

    def _unshare_last_extent(self) -> None:
        """Stop sharing the last extent if another cache extended it: view its full blocks, and copy the rest."""
        if not self.extents:
            return
        *_, (base, last) = self.bases()
        start = self.packed - base
        whole, rest = divmod(start, BLOCK)
        if start == last.used_rows or whole == last.blocks:
            return
        # if few blocks are full, they are copied too: a view of them would keep the whole extent in memory
        first = 0 if last.check is None and 2 * whole < last.blocks else whole
        self.extents[-1:] = [last.first_blocks(first)] if first else []
        self.extents += [last.copy(first, whole + (rest > 0))] if first < whole or rest else []

    def _put(self, layers: slice, k: torch.Tensor, v: torch.Tensor) -> None:
        """Pack rows (layers, kv_heads, rows, head_dim) that fill whole pages, and append them to the packed rows."""
        packed = pack(k, self.format, self.format.keys), pack(v, self.format)
        done = 0
        for base, extent in self.bases():
            at = self.packed + done - base
            if 0 <= at < extent.capacity and done < k.shape[2]:
                count = min(extent.capacity - at, k.shape[2] - done)
                extent.write(layers, at, *(side.part(done, done + count) for side in packed))
                done += count

    def _unpacked(self, start: int, stop: int) -> torch.Tensor:
        """Unpack rows ``start:stop`` of the page that begins at ``start``: (2, layers, 1, kv_heads, rows, head_dim)."""
        layers = [self._tile(layer, start, start + PAGE) for layer in range(self.spec.layers)]
        sides = [torch.stack([pair[side].unpack(self.spec.dtype) for pair in layers]) for side in (0, 1)]
        return torch.stack(sides)[..., : stop - start, :]

    def _shrink(self, rows: int) -> None:
        """Drop the extents that begin at row ``rows`` or later."""
        self.extents = [extent for base, extent in self.bases() if base < rows]
