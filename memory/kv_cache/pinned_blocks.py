"""Pinned knowledge: blocks that outlive the sessions that use them, within a room of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keep_agent.errors import CapacityError, ConfigError
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_lease import BlockLease, BlockPool
from memory.kv_cache.segment_index import SegmentIndex
from memory.storage.ram import Ram


@dataclass(frozen=True, slots=True)
class PinnedStats:
    entries: int  # names under which a block is found
    bytes: int
    hits: int  # since the beginning
    utilisation: float  # of the capacity


@dataclass
class PinnedPool:
    """SparseX's frozen blocks (arXiv 2606.01751, sections 4.1 and 4.2), apart from what a method's storage may evict.

    A block stays when nobody refers to it. When one more would fill more than ``watermark`` of ``capacity_bytes``, the
    blocks that the fewest prompts have used go first, among equals the least recently used; never one that a prompt
    being assembled refers to. The names are virtual hashes; several may stand for one block.
    """

    capacity_bytes: int = 256 << 20
    watermark: float = 0.9

    def __post_init__(self) -> None:
        if self.capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes={self.capacity_bytes} holds no block: use 1 or more")
        if not 0 < self.watermark <= 1:
            raise ConfigError(f"watermark={self.watermark} is a share of the capacity: use more than 0 and at most 1")
        self._pool = BlockPool(Ram(budget_bytes=None, device=None))
        self._own = self._pool.holder()
        self._index = SegmentIndex(self._pool)
        self._uses: dict[str, int] = {}  # prompts per block, the least recently used block first
        self._hits = 0

    def holder(self) -> BlockLease:
        """What a prompt refers to blocks with while it is assembled."""
        return self._pool.holder()

    def freeze(self, name: str, physical: str, make: Callable[[], KVBlock]) -> None:
        """Pin the block ``physical`` under ``name``; ``make`` computes it if it is under no name yet.

        :raises CapacityError: it does not fit beside the blocks in use
        """
        if physical not in self._uses:
            block = make()
            self._make_room(block.nbytes)
            self._own.put(block)
            self._uses[physical] = 0
        if self._index.physical(name) != physical:
            self.thaw(name)
            self._index.insert(name, physical, 0, self._own.get(physical).tokens)

    def find(self, name: str, holder: BlockLease) -> KVBlock | None:
        """The block of ``name``, to which ``holder`` refers from now on."""
        block = self._index.find(name, holder)
        if block is not None:
            self._uses[block.identity] = self._uses.pop(block.identity) + 1
            self._hits += 1
        return block

    def thaw(self, name: str) -> None:
        """Delete ``name``, and its block if it has no other; what is not frozen stays as it is."""
        entry = self._index.delete(name)
        if entry is not None and not self._index.names(entry.physical):
            self._release(entry.physical)

    def contains(self, name: str) -> bool:
        return name in self._index

    def stats(self) -> PinnedStats:
        return PinnedStats(len(self._index), self._bytes, self._hits, self._bytes / self.capacity_bytes)

    @property
    def _bytes(self) -> int:
        return self._pool.storage.stats()["bytes"]

    def _make_room(self, nbytes: int) -> None:
        """Release blocks until ``nbytes`` more stay below the watermark, or nothing more can go."""
        idle = [physical for physical in self._uses if self._pool.references[physical] == 1]
        pinned = self._bytes - sum(self._own.get(physical).nbytes for physical in idle)
        if pinned + nbytes > self.capacity_bytes:
            raise CapacityError(
                f"a block of {nbytes} bytes does not fit beside the {pinned} in use into a frozen pool of "
                f"{self.capacity_bytes}: raise memory.frozen.capacity_bytes, or freeze less at once"
            )
        for physical in sorted(idle, key=self._uses.__getitem__):
            if self._bytes + nbytes <= self.watermark * self.capacity_bytes:
                break
            self._release(physical)

    def _release(self, physical: str) -> None:
        for name in self._index.names(physical):
            self._index.delete(name)
        del self._uses[physical]
        self._own.drop(physical)
