"""Memory storage: blocks in the memory of the host or of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.kv_cache.block import CacheLedger, Entry, KVBlock
from memory.stages import Capabilities


class BlockStore:
    """The part that storages in memory and on a disk share. ``budget_bytes=None`` is no limit."""

    budget_bytes: int | None
    ledger: CacheLedger[Entry]

    def __post_init__(self) -> None:
        if (self.budget_bytes or 0) < 0:
            raise ConfigError(f"budget_bytes={self.budget_bytes} is negative: use 0 or more, or null for no limit")
        self._blocks: dict[str, KVBlock] = {}  # in memory
        self.ledger = CacheLedger()
        self._counts = dict.fromkeys(("hits", "misses", "evicted", "rejected"), 0)

    def form(self, block: KVBlock) -> KVBlock:
        """Return the block in the form in which it is stored."""
        return block

    def put(self, block: KVBlock) -> None:
        """Store a block; one that is bigger than the whole budget is rejected, which the statistics show."""
        self.delete(block.identity)
        block = self.form(block)
        if self.budget_bytes is not None and block.nbytes > self.budget_bytes:
            self._counts["rejected"] += 1
            return
        self._insert(block)
        self._evict()

    def get(self, identity: str) -> KVBlock | None:
        block = self.peek(identity)
        self._counts["misses" if block is None else "hits"] += 1
        if block is not None:
            self.ledger.touch(identity)
        return block

    def peek(self, identity: str) -> KVBlock | None:
        """Return a block without counting that as a use."""
        return self._blocks.get(identity)

    def contains(self, identity: str) -> bool:
        return identity in self.ledger

    def verify(self, identity: str) -> bool:
        return self.contains(identity)

    def delete(self, identity: str) -> None:
        self._blocks.pop(identity, None)
        self.ledger.remove(identity)

    def entries(self) -> list[Entry]:
        """List what is stored, the least recently used first."""
        return list(self.ledger)

    def stats(self) -> dict[str, int]:
        """Count blocks and bytes, and since the beginning: hits, misses, evicted, rejected."""
        return {"blocks": len(self.ledger), "bytes": self.ledger.nbytes, **self._counts}

    def _insert(self, block: KVBlock) -> None:
        self._blocks[block.identity] = block
        self.ledger.add(block.entry)

    def _evict(self) -> None:
        if self.budget_bytes is not None:
            for entry in self.ledger.victims(self.ledger.nbytes - self.budget_bytes):
                self.delete(entry.key)
                self._counts["evicted"] += 1


@dataclass
class Ram(BlockStore):
    """A hash table from identity to block.

    Blocks are moved to ``device``; None leaves them where they were computed, as a tier in front of the host's does.
    """

    budget_bytes: int | None = 2 << 30
    device: str | None = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(in_memory=True)

    def open(self, model_key: str) -> None:
        """Do nothing: identities tell models apart."""

    def form(self, block: KVBlock) -> KVBlock:
        return block if self.device is None else block.to(self.device)

    def flush(self) -> None:
        """Do nothing: no block outlives the process."""
