"""KV pool: physical rows (slots) of keys and values, which caches share by reference and which never move."""

from __future__ import annotations

from threading import RLock
from typing import Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import CapacityError, ModelError

SENTINEL = 0  # slot that stands for every dropped position: it is never free, and caches read it only as masked padding
MARGIN = 32  # extra rows after the last slot, which caches may read as padding
FIRST_SIZE = 512


class SlotOwner(Protocol):
    """Object that refers to slots: a cache or a prefix index."""

    @property
    def slots(self) -> torch.Tensor:
        """Slots that the object refers to, (n,); a slot occurs once per reference."""
        ...


class KVPool:
    """Rows of keys (rotated) and values: ``k``, ``v`` are (layers, kv_heads, slots, head_dim).

    A slot is free when neither a cache nor a prefix index refers to it. Every slot always holds finite numbers, so
    that a cache may read slots after its own rows and mask them.

    A ``lock`` guards the reference counts, because requests begin, fork and end in any thread. Only the engine's
    worker thread writes rows and grows the pool. Hold the lock from a look-up of slots until you add a reference.

    :param capacity: maximum number of slots; None: the pool grows as long as there is memory
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int | None = None,
    ) -> None:
        self.capacity = capacity
        size = FIRST_SIZE if capacity is None else min(FIRST_SIZE, capacity + 1)
        shape = layers, kv_heads, size + MARGIN, head_dim
        self.k, self.v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.references: NDArray[np.int32] = np.zeros(size, np.int32)
        self.references[SENTINEL] = 1
        self.lock = RLock()  # reentrant: a thread that has the lock may run a cache's `__del__`, which acquires it
        self._owners: WeakSet[SlotOwner] = WeakSet()

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def size(self) -> int:
        """Number of slots, the sentinel's included."""
        return self.references.size

    @property
    def in_use(self) -> int:
        """Number of slots with a reference, without the sentinel."""
        return int((self.references > 0).sum()) - 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all layers."""
        return 2 * self.k[:, :, 0].nbytes

    def no_slots(self) -> torch.Tensor:
        """Return an empty tensor of slots, (0,)."""
        return torch.empty(0, dtype=torch.long, device=self.device)

    def register(self, owner: SlotOwner) -> None:
        """Let `check_integrity` count the references of ``owner`` while ``owner`` exists."""
        with self.lock:
            self._owners.add(owner)

    def allocate(self, count: int) -> torch.Tensor:
        """Return (count,) free slots, ascending, each with one reference. Raises CapacityError beyond ``capacity``."""
        with self.lock:
            if self.capacity is not None and self.in_use + count > self.capacity:
                raise CapacityError(
                    f"{count} rows do not fit into the pool: {self.in_use} of its {self.capacity} slots are in use; "
                    "lower the retention budget, close sessions, or give the pool more slots"
                )
            free = np.flatnonzero(self.references == 0)
            if free.size < count:
                self._grow(self.size + max(self.size, count - free.size))
                free = np.flatnonzero(self.references == 0)
            slots = free[:count]
            self.references[slots] += 1
            return torch.from_numpy(slots).to(self.device)

    def share(self, slots: torch.Tensor) -> None:
        """Add a reference to each of ``slots``; the sentinel needs none."""
        with self.lock:
            np.add.at(self.references, _without_sentinel(slots), 1)

    def release(self, slots: torch.Tensor) -> None:
        """Remove a reference from each of ``slots``; without any, a slot is free. Raises ModelError for a free slot."""
        with self.lock:
            numbers = _without_sentinel(slots)
            np.subtract.at(self.references, numbers, 1)
            if (self.references[numbers] < 0).any():
                np.add.at(self.references, numbers, 1)
                raise ModelError("a slot was released more often than it was referred to")

    def check_integrity(self) -> None:
        """Check every slot's count against the owners' references. Raises ModelError if any differs."""
        with self.lock:
            expected = np.zeros_like(self.references)
            expected[SENTINEL] = 1
            for owner in self._owners:
                np.add.at(expected, _without_sentinel(owner.slots), 1)
            wrong = np.flatnonzero(expected != self.references)
            if wrong.size:
                slot = int(wrong[0])
                raise ModelError(
                    f"{wrong.size} slots have a wrong reference count: slot {slot} has {expected[slot]} references, "
                    f"but its count is {self.references[slot]}"
                )

    def _grow(self, size: int) -> None:
        if self.capacity is not None:
            size = min(size, self.capacity + 1)
        more = size - self.size
        shape = (*self.k.shape[:2], more, self.k.shape[3])
        self.k, self.v = (torch.cat([old, old.new_zeros(shape)], 2) for old in (self.k, self.v))
        self.references = np.concatenate([self.references, np.zeros(more, np.int32)])


def _without_sentinel(slots: torch.Tensor) -> NDArray[np.int64]:
    numbers = slots.cpu().numpy()
    return numbers[numbers != SENTINEL]
