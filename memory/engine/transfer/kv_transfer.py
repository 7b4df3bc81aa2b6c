"""How slices of blocks move into a working cache: gathered, turned to the prompt's positions, written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.rope import Angles, RopeTables, at_rows
from memory.engine.transfer.link import Staging
from memory.kv_cache.dense import DenseCache, put
from memory.kv_cache.packed_rows import PackedRows
from memory.prompt.layout import Layout

Run = tuple[int, tuple[int, int]]  # a placement, and rows (start, stop) of its unit
Piece = torch.Tensor | PackedRows  # (layers, kv_heads, rows, head_dim)


@dataclass
class KVTransfer:
    """Copies runs of rows of blocks; what rests packed travels packed, and is unpacked on the cache's device."""

    layout: Layout
    cache: DenseCache
    rope: RopeTables
    angles: Angles  # of all prompt rows
    staging: Staging

    def move(self, first: int, last: int, runs: Sequence[Run]) -> int:
        """Move ``runs`` of layers ``[first, last)``; returns the bytes that travelled."""
        keys, values = self._pieces("k", first, last, runs), self._pieces("v", first, last, runs)
        rows = self._rows(runs)
        angles = at_rows(self.angles, rows)
        k, v = self.gather("k", keys), self.gather("v", values)
        put(self.cache.k[first:last, 0], rows, self.rope.rotate_layers(k, angles, first))
        put(self.cache.v[first:last, 0], rows, v)
        if self.cache.raw is not None:
            put(self.cache.raw[first:last, 0], rows, k)
        return sum(piece.nbytes for piece in (*keys, *values))

    @cached_property
    def row_bytes(self) -> int:
        """About what one row of a layer travels with, keys and values."""
        block = next((place.block for place in self.layout.placements if place.block is not None), None)
        return 0 if block is None else block.nbytes // (block.k.shape[0] * block.tokens)

    def spans(self, runs: Sequence[Run]) -> list[tuple[int, int]]:
        """Prompt rows (start, stop) of each run."""
        starts = [self.layout.placements[place].start for place, _ in runs]
        return [(at + rows[0], at + rows[1]) for at, (_, rows) in zip(starts, runs, strict=True)]

    def cut(self, held: Piece, first: int, last: int, start: int, stop: int) -> Piece:
        """Layers and rows of keys or values of a block; packed ones stay packed."""
        if isinstance(held, PackedRows):
            return held.narrow(2, start, stop - start).layers(first, last)
        return held[first:last, :, start:stop]

    def gather(self, name: str, pieces: Sequence[Piece]) -> torch.Tensor:
        """The pieces in one tensor on the cache's device, (layers, kv_heads, rows, head_dim).

        :param name: of the buffer that may hold it, until the same name is gathered again
        """
        device = self.cache.k.device
        unpacked = [p.to(device)[:] if isinstance(p, PackedRows) else p for p in pieces]
        if len(unpacked) == 1 and unpacked[0].device == device:
            return unpacked[0]
        layers, heads, _, width = unpacked[0].shape
        bounds = [0, *accumulate(piece.shape[2] for piece in unpacked)]
        if device.type != "cuda":
            whole = self.staging.take(name, (layers, heads, bounds[-1], width), self.cache.k)
            return torch.cat([piece.to(device) for piece in unpacked], 2, out=whole)
        # token by token, as blocks rest in pinned memory
        whole = self.staging.take(name, (layers, bounds[-1], heads, width), self.cache.k)
        if all(piece.device.type == "cpu" for piece in unpacked):
            whole.copy_(self._joined(name, unpacked), non_blocking=True)
            self.staging.in_use(name)
        else:
            torch.cat([piece.to(device).transpose(1, 2) for piece in unpacked], 1, out=whole)
        return whole.transpose(1, 2)

    def _joined(self, name: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """``pieces`` in host memory as one pinned tensor (layers, rows, kv_heads, head_dim).

        One copy over the link then, and not one per block: with blocks of 40 tokens issuing the copies takes longer
        than the copies.
        """
        rows = [piece.transpose(1, 2) for piece in pieces]
        if len(rows) == 1 and rows[0].is_pinned():
            return rows[0]
        layers, _, heads, width = rows[0].shape
        shape = (layers, sum(piece.shape[1] for piece in rows), heads, width)
        return torch.cat(rows, 1, out=self.staging.pinned(name, shape, self.cache.k))

    def _pieces(self, side: str, first: int, last: int, runs: Sequence[Run]) -> list[Piece]:
        found = []
        for place, (start, stop) in runs:
            block = self.layout.placements[place].block
            if block is None:
                raise ConfigError("the loading stage asks for a unit that has no block; fresh units are never loaded.")
            found.append(self.cut(getattr(block, side), first, last, start, stop))
        return found

    def _rows(self, runs: Sequence[Run]) -> slice | torch.Tensor:
        """Prompt rows of the runs in their order: a slice if they form one."""
        spans = self.spans(runs)
        if all(stop == start for (_, stop), (start, _) in pairwise(spans)):
            return slice(spans[0][0], spans[-1][1])
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        return torch.from_numpy(rows).to(self.cache.k.device)
