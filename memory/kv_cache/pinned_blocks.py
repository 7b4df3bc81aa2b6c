"""Pinned blocks: KV blocks that stay stored when the sessions that use them end, within a budget of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from keep_agent.errors import CapacityError, ConfigError
from memory.kv_cache.block import Entry, KVBlock
from memory.kv_cache.block_store import BlockLease, BlockPool, CacheLedger
from memory.kv_cache.segment_index import SegmentIndex
from memory.storage.ram import Ram


@dataclass(frozen=True, slots=True)
class PinnedStats:
    entries: int  # pinned names
    bytes: int
    hits: int  # since the start
    utilisation: float  # used share of the capacity


@dataclass
class PinnedPool:
    """Pool of SparseX's frozen blocks (arXiv 2606.01751, sections 4.1 and 4.2). Other blocks have another storage.

    If a new block would raise the total above ``watermark * capacity_bytes``, blocks that no prompt is using are
    evicted. The blocks that the fewest prompts have used go first, and among these the least recently used.
    Names are segment hashes; several names may refer to one block.
    """

    capacity_bytes: int = 256 << 20
    watermark: float = 0.9

    def __post_init__(self) -> None:
        if self.capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes={self.capacity_bytes} is too small for a block: use 1 or more")
        if not 0 < self.watermark <= 1:
            raise ConfigError(f"watermark={self.watermark} is not a share of the capacity: use above 0 and at most 1")
        self._pool = BlockPool(Ram(budget_bytes=None, device=None))
        self._lease = self._pool.lease()
        self._index = SegmentIndex(self._pool)
        self._ledger: CacheLedger[Entry] = CacheLedger()
        self._uses: Counter[str] = Counter()  # number of look-ups that found each block, by identity
        self._hits = 0

    def lease(self) -> BlockLease:
        """Make a lease: the blocks that a prompt gets through it are not evicted until the lease is released."""
        return self._pool.lease()

    def pin(self, name: str, physical: str, make: Callable[[], KVBlock]) -> None:
        """Pin block ``physical`` (an identity) as ``name``; ``make`` computes a missing block. Raises CapacityError."""
        if physical not in self._ledger:
            block = make()
            self._make_room(block.nbytes)
            self._lease.put(block)
            self._ledger.add(block.entry)
        if self._index.physical(name) != physical:
            self.unpin(name)
            self._index.insert(name, physical, 0, self._lease.get(physical).tokens)

    def find(self, name: str, lease: BlockLease) -> KVBlock | None:
        """Return the block pinned as ``name``, or None. ``lease`` refers to it from now on, so it is not evicted."""
        block = self._index.find(name, lease)
        if block is not None:
            self._ledger.touch(block.identity)
            self._uses[block.identity] += 1
            self._hits += 1
        return block

    def unpin(self, name: str) -> None:
        """Delete ``name``, if it is pinned, and its block if the block has no other name."""
        entry = self._index.delete(name)
        if entry is not None and not self._index.names(entry.physical):
            self._release(entry.physical)

    def contains(self, name: str) -> bool:
        return name in self._index

    def stats(self) -> PinnedStats:
        stored = self._stored_bytes
        return PinnedStats(len(self._index), stored, self._hits, stored / self.capacity_bytes)

    @property
    def _stored_bytes(self) -> int:
        """Bytes of all blocks, including unpinned ones still in use, which are no longer in the ledger."""
        return self._pool.storage.stats()["bytes"]

    def _make_room(self, nbytes: int) -> None:
        """Evict blocks until ``nbytes`` more fit below the watermark, or all remaining blocks are in use."""
        entries = (entry for entry in self._ledger if self._pool.references[entry.key] == 1)
        idle = CacheLedger(sorted(entries, key=lambda entry: self._uses[entry.key]))
        in_use = self._stored_bytes - idle.nbytes
        if in_use + nbytes > self.capacity_bytes:
            raise CapacityError(
                f"a block of {nbytes} bytes does not fit into the pinned pool: {in_use} of its {self.capacity_bytes} "
                "bytes are in use; raise memory.pinned.capacity_bytes, or pin fewer segments at once"
            )
        for entry in idle.victims(self._stored_bytes + nbytes - self.watermark * self.capacity_bytes):
            self._release(entry.key)

    def _release(self, physical: str) -> None:
        for name in self._index.names(physical):
            self._index.delete(name)
        self._ledger.remove(physical)
        del self._uses[physical]
        self._lease.drop(physical)
