"""Paged cache: rows in slots of a pool; a dropped position is mapped to a sentinel slot, and no other row moves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from memory.engine.attention.kernels import KEY_MULTIPLE
from memory.engine.attention.observer import AttentionObserver
from memory.kv_cache.dense import EvictableRows, Rows
from memory.kv_cache.kv_pool import MARGIN, SENTINEL, KVPool

RENUMBERED = -1  # token id of renumbered rows, which depend on dropped rows: it matches no token of a prompt


class PagedCache(EvictableRows):
    """One request's rows in a slot pool.

    ``slot_map`` maps every position of the request's tokens to a slot, and dropped positions to the sentinel slot. The
    engine sees the live rows only, in order of their positions, so no row attends to the sentinel. In IntentKV
    (arXiv 2606.09916) rows attend to the sentinel, whose key is meant to give a small logit. docs/retention.md
    describes when the logit is not small.
    """

    tiled = False

    def __init__(self, pool: KVPool, observer: AttentionObserver | None = None) -> None:
        super().__init__(observer, pool.device)
        self.pool = pool
        self.slot_map = pool.no_slots()
        self._rows_forgotten = 0  # number of rows dropped before a renumbering, which no longer have a position
        self._pass: slice | torch.Tensor = slice(0, 0)  # slots that the current pass reads
        self._rows = self._spare = self.slot_map  # slots of live rows; slots reserved for new rows
        pool.register(self)

    @property
    def slots(self) -> torch.Tensor:
        """All slots this cache refers to."""
        return torch.cat([self._rows, self._spare])

    def reserve(self, rows: int, keep: bool = False) -> None:
        """Reserve slots for ``rows`` more rows."""
        missing = rows - self._spare.numel()
        if missing > 0:
            self._spare = torch.cat([self._spare, self.pool.allocate(missing)])

    def end_at(self, rows: int) -> int:
        """Begin a pass that reads ``rows`` rows; returns the number of rows to read, masked padding included."""
        self.reads.add(rows + self.dropped + self._rows_forgotten, rows)
        slots = self.slots[:rows]
        first, visible = int(slots[0]), rows + KEY_MULTIPLE
        if int(slots[-1]) - first + 1 == rows and bool((slots.diff() == 1).all()):
            self._pass = slice(first, first + visible)  # consecutive slots: no copy
        else:
            self._pass = torch.cat([slots, slots.new_full((KEY_MULTIPLE,), SENTINEL)])
        return visible

    def write(self, layer: int, rows: Rows, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store rotated keys ``k`` and values ``v``, (1, kv_heads, rows, head_dim) each, at ``rows`` of the pass."""
        if isinstance(self._pass, slice) and isinstance(rows, slice):
            run = slice(self._pass.start + rows.start, self._pass.start + rows.stop)
            self.pool.k[layer, :, run], self.pool.v[layer, :, run] = k[0], v[0]
            return
        slots = self.slots[rows]
        self.pool.k[layer].index_copy_(1, slots, k[0])
        self.pool.v[layer].index_copy_(1, slots, v[0])

    def read(self, layer: int, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read keys and values of the pass's rows, and masked padding after them, (1, kv_heads, visible, head_dim)."""
        k, v = self.pool.k[layer], self.pool.v[layer]
        if isinstance(self._pass, slice):
            return k[None, :, self._pass], v[None, :, self._pass]
        return k.index_select(1, self._pass)[None], v.index_select(1, self._pass)[None]

    def extend(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        """Add to the request the rows that the pass has just written."""
        count = positions.numel()
        fresh, self._spare = self._spare[:count], self._spare[count:]
        self.slot_map = torch.cat([self.slot_map, fresh])
        self._rows = torch.cat([self._rows, fresh])
        self._append(positions, logits, token_ids)

    def erase(self) -> None:
        """Zero rows with infinite or NaN numbers, even reserved ones; delete live rows from the first such row on."""
        slots, sides = self.slots, (self.pool.k, self.pool.v)
        finite = [side[:, :, slots].isfinite().all(-1).flatten(0, 1).all(0) for side in sides]
        valid = finite[0] & finite[1]
        for side in sides:
            side[:, :, slots[~valid]] = 0
        live = valid[: self.length]
        if not bool(live.all()):
            self.cut(int(self.positions[(~live).long().argmax()]))

    def cut(self, position: int) -> None:
        """Delete all tokens and rows from ``position`` on, and release reserved slots."""
        live = int(torch.searchsorted(self.positions, position))
        self.pool.release(torch.cat([self._rows[live:], self._spare]))
        self._rows, self._spare, self.slot_map = self._rows[:live], self._spare[:0], self.slot_map[:position]
        if position <= self.exact:  # the cut deletes all renumbered rows
            self._rows_forgotten = 0
        super().cut(position)

    def __del__(self) -> None:
        with suppress(ImportError):  # when the process ends, modules may be unloaded already
            self.pool.release(self.slots)

    def drop(self, keep: torch.Tensor) -> None:
        """Drop the live rows where ``keep``, (live rows,) bool, is False. Other rows keep their slots and positions."""
        dropped = self._drop(keep)
        if not dropped.numel():
            return
        self.pool.release(self._rows[~keep])
        self.slot_map = self.slot_map.index_fill(0, dropped, SENTINEL)
        self._rows = self._rows[keep]
        if self.observer is not None:
            self.observer.drop(self.positions)

    def renumber(self, first: int, keys: torch.Tensor) -> None:
        """Give the live rows positions 0, 1, ...; rows from ``first`` on change their positions and move to new slots.

        :param keys: (layers, kv_heads, rows from ``first`` on, head_dim), rotated for their new positions
        """
        old = self._rows[first:]
        self._rows_forgotten += self.dropped
        slots = self.pool.allocate(old.numel())
        self.pool.k.index_copy_(2, slots, keys)
        self.pool.v.index_copy_(2, slots, self.pool.v.index_select(2, old))
        self.pool.release(old)
        self._rows = self.slot_map = torch.cat([self._rows[:first], slots])
        self.tokens[first:] = [RENUMBERED] * old.numel()
        self.positions = torch.arange(self.length, device=slots.device)
        self.exact = min(self.exact, first)
        if self.observer is not None:
            self.observer.cut(first)  # its queries and weights from ``first`` on belong to the old positions

    def fork(self) -> PagedCache:
        """Make the cache of another request, which shares these rows and continues after them."""
        fork = PagedCache(self.pool)
        self.pool.share(self._rows)
        fork.slot_map, fork.positions, fork._rows = self.slot_map.clone(), self.positions, self._rows
        fork.tokens, fork.exact, fork.logits = list(self.tokens), self.exact, self.logits
        fork._rows_forgotten = self._rows_forgotten
        return fork

    def adopt(self, slots: torch.Tensor, tokens: Sequence[int]) -> None:
        """Replace all rows by stored ones: slot ``slots[i]`` has the row of position i with token ``tokens[i]``."""
        self.cut(0)
        self.pool.share(slots)
        self.slot_map = self._rows = slots
        self.positions = torch.arange(slots.numel(), device=slots.device)
        self.tokens, self.exact = list(tokens), slots.numel()

    def keys(self, layer: int) -> torch.Tensor:
        """Return keys (kv_heads, live rows, head_dim), rotated."""
        return self.pool.k[layer].index_select(1, self._rows)

    def values(self, layer: int) -> torch.Tensor:
        """Return values (kv_heads, live rows, head_dim)."""
        return self.pool.v[layer].index_select(1, self._rows)


assert MARGIN >= KEY_MULTIPLE
