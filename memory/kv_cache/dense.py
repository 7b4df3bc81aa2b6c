"""Dense cache: one tensor for a prompt's keys and one for its values. Also the interface of all working caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch.nn import functional

from keep_agent.errors import ConfigError, ModelError
from memory.engine.attention.kernels import KEY_MULTIPLE
from memory.engine.attention.observer import AttentionObserver
from memory.engine.attention.tiled import Tile
from memory.engine.base import KVCache, ReadCounts
from memory.engine.models.model_spec import ModelSpec

Rows = slice | torch.Tensor  # a contiguous run, or sorted row numbers
HEADROOM = 256  # free rows after a prompt, for candidate continuations and generated tokens


class WorkingCache(KVCache, Protocol):
    """Interface that a forward pass needs of a cache. Tensors have a leading request axis; keys are rotated (RoPE)."""

    raw: torch.Tensor | None  # unrotated copies of the keys, if rows will be copied to blocks (harvested)
    observer: AttentionObserver | None  # records the passes that append rows
    tiled: bool  # whether rows are read tile by tile instead of all at once

    def reserve(self, rows: int, keep: bool = False) -> None:
        """Make room for a pass over ``rows`` new rows. With ``keep``, `extend` keeps the rows, else they are lost."""
        ...

    def end_at(self, rows: int) -> int: ...

    def write(self, layer: int, rows: Rows, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store rotated keys ``k`` and values ``v``, (requests, kv_heads, rows, head_dim) each, at ``rows``."""
        ...

    def write_raw(self, layer: int, rows: Rows, k: torch.Tensor) -> None: ...

    def read(self, layer: int, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read rotated keys and values of rows ``0:visible``, (requests, kv_heads, visible, head_dim) each."""
        ...

    def tiles(self, layer: int, first: int = 0) -> Iterable[Tile]:
        """Yield all rows that the pass reads, tile by tile. The caller ignores rows before ``first``."""
        ...

    def extend(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None: ...

    def erase(self) -> None:
        """Zero rows with infinite or NaN numbers, if other requests may read these rows as padding."""
        ...


class DenseCache:
    """One tensor for all keys and one for all values: ``(layers, 1, kv_heads, capacity, head_dim)``.

    Keys are rotated, so decoding never rotates them again. If rows will be harvested (copied to blocks), ``raw`` has
    the unrotated keys. ``positions`` belong to rows ``0:length``, ``logits`` to the last row.
    """

    tiled = False

    def __init__(self, spec: ModelSpec, capacity: int, device: torch.device, raw: bool = False) -> None:
        shape = (spec.layers, 1, spec.kv_heads, capacity + KEY_MULTIPLE, spec.head_dim)
        self.k = torch.empty(shape, dtype=spec.dtype, device=device)
        self.v = torch.empty_like(self.k)
        self.raw = torch.empty_like(self.k) if raw else None
        self.length = 0
        self.next_position = 0  # the last row's position + 1, which can exceed the number of rows
        self.positions = torch.empty(0, dtype=torch.long, device=device)
        self.logits: torch.Tensor | None = None
        self.reads = ReadCounts()
        self.observer = None

    def extend(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        """Add to the cache the rows that a pass has just written after the first ``length`` rows."""
        self.positions = torch.cat([self.positions, positions])
        self.length += positions.numel()
        self.next_position, self.logits = int(positions[-1]) + 1, logits

    def rewind(self, length: int, logits: torch.Tensor | None) -> None:
        """Delete all but the first ``length`` rows; ``logits`` are those of the last row that stays."""
        self.positions, self.length, self.logits = self.positions[:length], length, logits
        self.next_position = int(self.positions[-1]) + 1 if length else 0

    def erase(self) -> None:
        """Change nothing: no other cache reads the rows of this one."""

    def write(self, layer: int, rows: Rows, k: torch.Tensor, v: torch.Tensor) -> None:
        write_rows(self.k[layer], rows, k)
        write_rows(self.v[layer], rows, v)

    def write_raw(self, layer: int, rows: Rows, k: torch.Tensor) -> None:
        """Store unrotated keys, if rows of this cache will be harvested."""
        if self.raw is not None:
            write_rows(self.raw[layer], rows, k)

    def read(self, layer: int, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k[layer, :, :, :visible], self.v[layer, :, :, :visible]

    def end_at(self, rows: int) -> int:
        """Zero the padding after the first ``rows`` rows. Return how many rows attention reads, with padding."""
        self.reads.raw += rows
        self.reads.live += rows
        stop = rows + KEY_MULTIPLE
        self.k[:, :, :, rows:stop] = 0
        self.v[:, :, :, rows:stop] = 0
        return stop

    def reserve(self, rows: int, keep: bool = False) -> None:
        """Make room for ``rows`` more rows after ``length``; without enough room, copy all rows to bigger tensors."""
        more = self.length + rows + KEY_MULTIPLE - self.k.shape[3]
        if more > 0:
            self.k, self.v = (functional.pad(x, (0, 0, 0, more + HEADROOM)) for x in (self.k, self.v))
            self.raw = None if self.raw is None else functional.pad(self.raw, (0, 0, 0, more + HEADROOM))

    def harvest(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the unrotated keys and the values of ``rows``, (layers, kv_heads, rows, head_dim) each.

        :raises ModelError: if the cache was made without unrotated keys.
        """
        if self.raw is None:
            raise ModelError("rows of this cache cannot be copied to blocks: run the prefill with keep_raw=True.")
        return self.raw[:, 0].index_select(2, rows), self.v[:, 0].index_select(2, rows)


def write_rows(target: torch.Tensor, rows: Rows, values: torch.Tensor) -> None:
    """Write ``values`` at ``rows`` of ``target`` (requests or layers, kv_heads, capacity, head_dim)."""
    if isinstance(rows, slice):
        target[:, :, rows] = values
    else:
        target.index_copy_(2, rows, values)


class EvictableRows:
    """Base class of caches that drop rows. ``tokens`` covers all rows, ``positions`` only live (not dropped) rows."""

    raw = None  # no unrotated keys are stored

    def __init__(self, observer: AttentionObserver | None, device: torch.device) -> None:
        self.observer = observer
        self.tokens: list[int] = []
        self.positions = torch.empty(0, dtype=torch.long, device=device)
        self.logits: torch.Tensor | None = None
        self.reads = ReadCounts()
        self.exact = 0  # number of leading positions whose rows are live and equal to those of a plain forward pass
        self.requests = 0  # number of a scheduler's open requests that use this cache

    @property
    def length(self) -> int:
        """Number of live rows."""
        return self.positions.numel()

    @property
    def next_position(self) -> int:
        """Position of the next token; dropping rows does not change it."""
        return len(self.tokens)

    @property
    def dropped(self) -> int:
        return self.next_position - self.length

    def write_raw(self, layer: int, rows: Rows, k: torch.Tensor) -> None:
        """Change nothing: unrotated keys are not stored."""

    def rewind(self, length: int, logits: torch.Tensor | None) -> None:
        """Delete all but the first ``length`` live rows; ``logits`` are those of the last row that stays."""
        self.cut(int(self.positions[length]) if length < self.length else self.next_position)
        self.logits = logits

    def cut(self, position: int) -> None:
        """Delete all tokens and rows from ``position`` on."""
        self.positions = self.positions[: int(torch.searchsorted(self.positions, position))]
        del self.tokens[position:]
        self.exact, self.logits = min(self.exact, position), None
        if self.observer is not None:
            self.observer.cut(position)

    def _append(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        if self.exact == self.next_position:
            self.exact += positions.numel()
        self.tokens += token_ids.tolist()
        self.positions, self.logits = torch.cat([self.positions, positions]), logits

    def _drop(self, keep: torch.Tensor) -> torch.Tensor:
        """Remove and return the positions of the live rows where ``keep``, (live rows,) bool, is False."""
        if keep.numel() != self.length:
            raise ConfigError(f"a mask of {keep.numel()} rows does not fit the {self.length} live rows")
        dropped = self.positions[~keep]
        if dropped.numel():
            self.positions = self.positions[keep]
            self.exact = min(self.exact, int(dropped[0]))
        return dropped
