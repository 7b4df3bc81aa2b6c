"""Rows of several paged caches side by side."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.utils.rnn import pad_sequence

from memory.engine.scheduler.batched_cache import BatchedCache, Run, requests_at
from memory.kv_cache.kv_pool import SENTINEL
from memory.kv_cache.paged import PagedCache

ROWS = 8192  # of all requests in a tile, as they lie in the pool


class BatchedPagedCache(BatchedCache[PagedCache]):
    """Rows of caches of one slot pool, copied for every layer by their slots."""

    def begin(self) -> None:
        super().begin()
        self._slots: dict[int | None, torch.Tensor] = {}
        self._counts: dict[int | None, list[int]] = {}
        self._new = torch.cat([member.slots[member.length : member.length + 1] for member in self.members])

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        pool = self.members[0].pool
        pool.k[layer].index_copy_(1, self._new, k.transpose(0, 1))
        pool.v[layer].index_copy_(1, self._new, v.transpose(0, 1))

    def runs(self, layer: int, side: int, window: int | None) -> Iterator[tuple[int, int, Run]]:
        pool = self.members[0].pool
        stored, slots = (pool.k, pool.v)[side][layer], self._gather(window)
        counts, first = self._counts[window], 0
        while first < slots.shape[1]:
            requests = requests_at(counts, first)
            part = slots[:requests, first : first + -(-ROWS // requests)]
            yield 0, first, stored.index_select(1, part.flatten()).unflatten(1, part.shape)
            first += part.shape[1]

    def visible(self, window: int | None) -> torch.Tensor:
        slots = self._gather(window)
        counts = torch.tensor(self._counts[window], device=slots.device)
        return torch.arange(slots.shape[1], device=slots.device) < counts[:, None]

    def _gather(self, window: int | None) -> torch.Tensor:
        """(requests, columns) slots of the rows in sight, the sentinel behind them."""
        if window not in self._slots:
            seen = [self._seen(i, window) for i in range(len(self.members))]
            self._slots[window] = pad_sequence(seen, batch_first=True, padding_value=SENTINEL)
            self._counts[window] = [slots.numel() for slots in seen]
        return self._slots[window]

    def _seen(self, number: int, window: int | None) -> torch.Tensor:
        member = self.members[number]
        slots = member.slots[: member.length + 1]
        if window is None:
            return slots
        return slots[int(torch.searchsorted(member.positions, member.next_position - window, right=True)) :]
