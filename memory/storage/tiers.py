"""Tiers of storages, fastest first: a block that does not fit into a fast one moves down instead of being lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from keep_agent.errors import ConfigError
from memory.kv_cache.block import Entry, KVBlock
from memory.kv_cache.block_store import CacheLedger
from memory.kv_cache.packed_rows import DamagedError
from memory.stages import Capabilities
from memory.storage.ram import BlockStore


@dataclass
class Tiers:
    """Storage of tiers: blocks go into the first tier when they are stored or read; the least recently used move down.

    A block on a disk is read layer by layer; the next `get` after all layers were read copies it to the first tier. A
    lower tier keeps its copy until it needs the space, so a block may be in several tiers. A block that fits into no
    tier is not stored, but counted as rejected. ``flush`` copies all blocks into the last tier, if it is persistent.

    ``pins`` names blocks that neither move down nor expire, in any tier. ``quotas`` gives each namespace a share of
    every tier's budget. Blocks of a namespace that takes no more than its share are not evicted for other
    namespaces. A block expires ``ttl_seconds`` after it was stored, also while no process runs.
    """

    tiers: Sequence[BlockStore]
    pins: Collection[str] = ()
    ttl_seconds: float | None = None
    quotas: Mapping[str, float] | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.quotas = dict(self.quotas or {})
        for problem in self._problems():
            raise ConfigError(problem)
        self._pinned = set(self.pins)
        self._by_time: CacheLedger[Entry] = CacheLedger()  # every block once, the oldest first
        counts = ("hits", "misses", "evicted", "rejected", "promoted", "demoted", "expired")
        self._counts = dict.fromkeys(counts, 0)
        self._add_stored()

    @property
    def capabilities(self) -> Capabilities:
        exact = all(tier.capabilities.exact for tier in self.tiers)
        return Capabilities(exact=exact, persists=self.tiers[-1].capabilities.persists)

    def open(self, model_key: str) -> None:
        """Find the blocks that earlier processes stored in the tiers."""
        for tier in self.tiers:
            tier.open(model_key)
        self._add_stored()

    def pin(self, identity: str) -> None:
        """Keep a block in its tier until `unpin` or `delete`; a block may be pinned before it is stored."""
        self._pinned.add(identity)

    def unpin(self, identity: str) -> None:
        self._pinned.discard(identity)

    def put(self, block: KVBlock) -> None:
        """Store a block in the first tier that has or can free space for it."""
        self._expire()
        self.delete(block.identity)
        block = replace(block, created=self.clock())
        if self._store(0, block, block.namespace):
            self._by_time.add(block.entry)
        else:
            self._counts["rejected"] += 1

    def get(self, identity: str) -> KVBlock | None:
        self._expire()
        for level in self._levels(identity):
            block = self.tiers[level].get(identity)
            if block is None:  # this copy is damaged
                continue
            self._counts["hits"] += 1
            if level and block.is_loaded and identity not in self._pinned:
                self._promote(level, block)
            return block
        self._by_time.remove(identity)
        self._counts["misses"] += 1
        return None

    def contains(self, identity: str) -> bool:
        self._expire()
        return any(self.tiers[level].contains(identity) for level in self._levels(identity))

    def verify(self, identity: str) -> bool:
        self._expire()
        return any(self.tiers[level].verify(identity) for level in self._levels(identity))

    def delete(self, identity: str) -> None:
        """Delete a block in all tiers, pinned or not."""
        for tier in self.tiers:
            tier.delete(identity)
        self._by_time.remove(identity)

    def entries(self) -> list[Entry]:
        """List each tier's blocks, the least recently used first. A block in several tiers is listed several times."""
        return [entry for tier in self.tiers for entry in tier.ledger]

    def stats(self) -> dict[str, int]:
        """Count blocks and bytes, in all and per tier (``tier0_bytes``), and events since the start.

        Copies in several tiers count as one block. Evicted, rejected and expired blocks are lost."""
        tiers = {}
        for level, tier in enumerate(self.tiers):
            tiers |= {f"tier{level}_blocks": len(tier.ledger), f"tier{level}_bytes": tier.ledger.nbytes}
        total = sum(tier.ledger.nbytes for tier in self.tiers)
        return {"blocks": len(self._by_time), "bytes": total, **tiers, **self._counts}

    def flush(self) -> None:
        """Copy blocks into a persistent last tier (the most recently used, if not all fit), then flush all tiers."""
        self._expire()
        *above, last = self.tiers
        if self.capabilities.persists:
            for tier in reversed(above):
                lacking = [entry.key for entry in tier.ledger if entry.key not in last.ledger]
                for block in filter(None, map(tier.peek, lacking)):
                    self._store_in(len(above), block, block.namespace)
            for tier in above:
                for entry in reversed(list(tier.ledger)):
                    last.ledger.make_oldest(entry.key)  # blocks that are also in a faster tier are evicted first
        for tier in self.tiers:
            tier.flush()

    def _problems(self) -> list[str]:
        if not self.tiers:
            return ["tiers is empty: name at least one storage"]
        lacking = [type(tier).__name__ for tier in self.tiers if not hasattr(tier, "stored_form")]
        if lacking:
            return [f"{lacking[0]} cannot be a tier, as it has no stored_form(): use Ram, Quantized or Disk"]
        problems = [
            f"tier {type(below).__name__} stores numbers unrounded, but {type(above).__name__} above it rounds them: "
            "quantize the lower tier too, or swap the two"
            for above, below in pairwise(self.tiers)
            if below.capabilities.exact and not above.capabilities.exact
        ]
        if min(self.quotas.values(), default=0) < 0 or sum(self.quotas.values()) > 1:
            problems.append(f"quotas={self.quotas} must be shares of a tier: use 0 or more, together at most 1")
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            problems.append(f"ttl_seconds={self.ttl_seconds} must be more than 0 seconds, or null for no limit")
        return problems

    def _levels(self, identity: str) -> list[int]:
        return [level for level, tier in enumerate(self.tiers) if identity in tier.ledger]

    def _add_stored(self) -> None:
        entries = {entry.key: replace(entry, timestamp=entry.timestamp or self.clock()) for entry in self.entries()}
        entries |= {entry.key: entry for entry in self._by_time}
        self._by_time = CacheLedger(sorted(entries.values(), key=lambda entry: entry.timestamp))

    def _expire(self) -> None:
        if self.ttl_seconds is None:
            return
        for entry in self._by_time.expired(self.clock() - self.ttl_seconds):
            if entry.key not in self._pinned:
                self.delete(entry.key)
                self._counts["expired"] += 1

    def _store(self, first: int, block: KVBlock, namespace: str) -> bool:
        """Put a block into the first tier from ``first`` on that has space for it."""
        return any(self._store_in(level, block, namespace) for level in range(first, len(self.tiers)))

    def _store_in(self, level: int, block: KVBlock, namespace: str) -> bool:
        """Put a block into one tier; return False if it is damaged or too few others may move down for ``namespace``.

        Blocks of namespaces above their quota (counting the new block) move down first, then those of ``namespace``.
        """
        try:
            block = self.tiers[level].stored_form(block.in_memory())
        except DamagedError:  # the block is mapped from a disk tier, and damaged there
            return False
        ledger, budget, new = self.tiers[level].ledger, self.tiers[level].budget_bytes, block.entry
        ledger.add(new)  # first: blocks moving down may evict its copy in a lower tier; this must not count as a loss
        excess = 0 if budget is None else ledger.nbytes - budget

        def movable(entry: Entry) -> bool:
            return entry is not new and entry.key not in self._pinned

        victims = ledger.victims(
            excess,
            lambda entry, share: movable(entry) and share - entry.nbytes >= self.quotas.get(entry.owner, 0) * budget,
            lambda entry, _: movable(entry) and entry.owner == namespace,
        )
        if sum(entry.nbytes for entry in victims) < excess:
            ledger.remove(new.key)
            return False
        for entry in victims:
            self._demote(level, entry.key, namespace)
        self.tiers[level].put(block)
        return True

    def _promote(self, level: int, block: KVBlock) -> None:
        """Put a block into the first tier; its copy in tier ``level`` becomes the first to be evicted there."""
        self.tiers[level].ledger.make_oldest(block.identity)
        if self._store_in(0, block, block.namespace):
            self._counts["promoted"] += 1
        else:
            self.tiers[level].ledger.touch(block.identity)

    def _demote(self, level: int, identity: str, namespace: str) -> None:
        """Remove a block from a tier, and move it down if no other tier has it."""
        block = self.tiers[level].peek(identity)
        self.tiers[level].delete(identity)
        copies = self._levels(identity)
        if copies:
            if copies[-1] > level:
                self.tiers[copies[-1]].ledger.touch(identity)
        elif block is not None and self._store(level + 1, block, namespace):
            self._counts["demoted"] += 1
        else:
            self._by_time.remove(identity)
            self._counts["evicted"] += 1
