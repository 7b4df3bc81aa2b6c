"""Storages one behind the other, fastest first: what a fast one has no room for moves down instead of being lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock
from memory.kv_cache.mapped_rows import DamagedError
from memory.stages import Capabilities, Storage
from memory.storage.ledger import Entry, Ledger


class Tier(Storage, Protocol):
    """A storage that says what a block takes, so that room is made before it is put."""

    budget_bytes: int | None

    def form(self, block: KVBlock) -> KVBlock:
        """The block as it rests here."""
        ...


@dataclass
class Tiers:
    """New blocks go into the first tier, and so does what is asked for; the least recently used move down, then out.
    What lies on a disk is served from there, layer by layer, until it has been read: only then it is copied up.

    A tier below keeps its copy of what moves up until it needs the room, so a block may rest in several. A block that
    no tier has room for is rejected, which the statistics show. ``flush`` copies into the last tier, if that persists,
    what it lacks.

    ``pins`` name blocks that are neither moved down nor expire, wherever they rest. ``quotas`` are shares of every
    tier's budget by namespace: what others put never leaves less than that of a namespace's blocks there. A block older
    than ``ttl_seconds`` is missing; its age goes on while no process runs.
    """

    tiers: Sequence[Tier]
    pins: Collection[str] = ()
    ttl_seconds: float | None = None
    quotas: Mapping[str, float] | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.quotas = dict(self.quotas or {})
        for problem in self._problems():
            raise ConfigError(problem)
        self._pinned = set(self.pins)
        self._ledgers = [Ledger() for _ in self.tiers]
        self._born: dict[str, float] = {}  # of every block, the oldest first
        counts = ("hits", "misses", "evicted", "rejected", "promoted", "demoted", "expired")
        self._counts = dict.fromkeys(counts, 0)
        self._adopt()

    @property
    def capabilities(self) -> Capabilities:
        each = [tier.capabilities for tier in self.tiers]
        return Capabilities(exact=all(one.exact for one in each), persists=each[-1].persists)

    def open(self, model_key: str) -> None:
        """Find what earlier processes left in the tiers."""
        for tier in self.tiers:
            tier.open(model_key)
        self._adopt()

    def pin(self, identity: str) -> None:
        """Keep a block where it is, now or when it is put, until it is deleted."""
        self._pinned.add(identity)

    def unpin(self, identity: str) -> None:
        self._pinned.discard(identity)

    def put(self, block: KVBlock) -> None:
        """Store a block in the first tier that has room or can make some."""
        self._expire()
        self.delete(block.identity)
        block = replace(block, born=self.clock())
        if self._store(0, block, block.namespace):
            self._born[block.identity] = block.born
        else:
            self._counts["rejected"] += 1

    def get(self, identity: str) -> KVBlock | None:
        self._expire()
        for level in self._levels(identity):
            block = self.tiers[level].get(identity)
            if block is None:  # damaged
                self._remove(level, identity)
                continue
            self._counts["hits"] += 1
            self._ledgers[level].touch(identity)
            if level and block.at_hand and identity not in self._pinned:
                self._promote(level, block)
            return block
        self._born.pop(identity, None)
        self._counts["misses"] += 1
        return None

    def get_layer(self, identity: str, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        block = self.get(identity)
        try:
            return None if block is None else (block.k[layer], block.v[layer])
        except DamagedError:
            return None

    def contains(self, identity: str) -> bool:
        self._expire()
        return any(self.tiers[level].contains(identity) for level in self._levels(identity))

    def sound(self, identity: str) -> bool:
        self._expire()
        return any(self.tiers[level].sound(identity) for level in self._levels(identity))

    def delete(self, identity: str) -> None:
        """Forget a block in all tiers, pinned or not."""
        for level in self._levels(identity):
            self._remove(level, identity)
        self._born.pop(identity, None)

    def entries(self) -> list[Entry]:
        """What rests in each tier, the least recently used first; a copy in several tiers comes several times."""
        return [entry for ledger in self._ledgers for entry in ledger]

    def stats(self) -> dict[str, int]:
        """blocks and bytes (copies in several tiers count once as blocks), those of each tier as ``tier0_bytes``; since
        the beginning: hits, misses, promoted, demoted; evicted, rejected and expired blocks, which are lost."""
        tiers = {}
        for level, ledger in enumerate(self._ledgers):
            tiers |= {f"tier{level}_blocks": len(ledger), f"tier{level}_bytes": ledger.bytes}
        total = sum(ledger.bytes for ledger in self._ledgers)
        return {"blocks": len(self._born), "bytes": total, **tiers, **self._counts}

    def flush(self) -> None:
        """Let all blocks outlive the process as far as the last tier has room, the most recently used ones first."""
        self._expire()
        if self.capabilities.persists:
            self._copy_down()
        for tier in self.tiers:
            tier.flush()

    def _problems(self) -> list[str]:
        """Why these tiers cannot work, in sentences."""
        if not self.tiers:
            return ["tiers is empty: name at least one storage"]
        lacking = [type(tier).__name__ for tier in self.tiers if not hasattr(tier, "form")]
        if lacking:
            return [f"{lacking[0]} is no tier, it has no form(): use Ram, Quantized or Disk"]
        wrong = [
            f"tier {type(below).__name__} would take for exact what {type(above).__name__} above it has rounded: let "
            "it round too, or let them change places"
            for above, below in pairwise(self.tiers)
            if below.capabilities.exact and not above.capabilities.exact
        ]
        shares = sum(self.quotas.values())
        if min(self.quotas.values(), default=0) < 0 or shares > 1:
            wrong.append(f"quotas={self.quotas} are shares of a tier: use 0 or more, together at most 1")
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            wrong.append(f"ttl_seconds={self.ttl_seconds} lets no block live: use more than 0, or null")
        return wrong

    def _levels(self, identity: str) -> list[int]:
        """Numbers of the tiers that hold a block, fastest first."""
        return [level for level, ledger in enumerate(self._ledgers) if identity in ledger]

    def _adopt(self) -> None:
        """Count what the tiers hold already."""
        for tier, ledger in zip(self.tiers, self._ledgers, strict=True):
            for entry in tier.entries():
                if entry.identity not in ledger:
                    ledger.add(entry)
                    self._born.setdefault(entry.identity, entry.born or self.clock())
        self._born = dict(sorted(self._born.items(), key=lambda item: item[1]))

    def _expire(self) -> None:
        if self.ttl_seconds is None:
            return
        latest, old = self.clock() - self.ttl_seconds, []
        for identity, born in self._born.items():
            if born > latest:
                break
            if identity not in self._pinned:
                old.append(identity)
        for identity in old:
            self.delete(identity)
        self._counts["expired"] += len(old)

    def _store(self, first: int, block: KVBlock, by: str) -> bool:
        """Put a block into the first tier from ``first`` on that takes it."""
        return any(self._store_in(level, block, by) for level in range(first, len(self.tiers)))

    def _store_in(self, level: int, block: KVBlock, by: str) -> bool:
        """Put a block into one tier, if ``by``, the namespace for which it is done, may push enough others out."""
        try:
            block = self.tiers[level].form(block.settled())
        except DamagedError:  # on the disk that it is to leave
            return False
        victims = self._victims(level, block, by)
        if victims is None:
            return False
        self._ledgers[level].add(Entry.of(block))  # before others move: a copy of it below may make room for them
        for identity in victims:
            self._push_out(level, identity, by)
        self.tiers[level].put(block)
        return True

    def _promote(self, level: int, block: KVBlock) -> None:
        """Put a block into the first tier; its copy in tier ``level`` is the first to make room for what moves down."""
        self._ledgers[level].age(block.identity)
        if self._store_in(0, block, block.namespace):
            self._counts["promoted"] += 1
        else:
            self._ledgers[level].touch(block.identity)

    def _victims(self, level: int, block: KVBlock, by: str) -> list[str] | None:
        """What has to leave a tier for ``block``, the least recently used first; None if that is not enough.

        First whatever leaves every namespace its quota, the block counted in; then more of what belongs to ``by``.
        """
        budget, ledger = self.tiers[level].budget_bytes, self._ledgers[level]
        if budget is None:
            return []
        left = ledger.shares.copy()
        left[block.namespace] += block.nbytes
        chosen: list[str] = []
        for own in (False, True):
            for entry in ledger:
                if left.total() <= budget:
                    break
                if entry.identity in self._pinned or entry.identity in chosen:
                    continue
                spare = left[entry.namespace] - entry.nbytes >= self.quotas.get(entry.namespace, 0) * budget
                if spare or (own and entry.namespace == by):
                    chosen.append(entry.identity)
                    left[entry.namespace] -= entry.nbytes
        return chosen if left.total() <= budget else None

    def _copy_down(self) -> None:
        """Copy into the last tier what it lacks, what was used last at the end, so that it is the last to go."""
        *above, last = range(len(self.tiers))
        for level in reversed(above):
            lacking = [entry for entry in self._ledgers[level] if entry.identity not in self._ledgers[last]]
            blocks = (self.tiers[level].get(entry.identity) for entry in lacking)
            for block in filter(None, blocks):
                self._store_in(last, block, block.namespace)
        for level in above:
            for entry in reversed(list(self._ledgers[level])):
                if entry.identity in self._ledgers[last]:
                    self._ledgers[last].age(entry.identity)  # copies are the first to make room for others

    def _push_out(self, level: int, identity: str, by: str) -> None:
        """Take a block out of a tier, and down if it rests nowhere else."""
        block = self.tiers[level].get(identity)
        self._remove(level, identity)
        copies = self._levels(identity)
        if copies and copies[-1] > level:
            self._ledgers[copies[-1]].touch(identity)
        if copies:
            return
        if block is not None and self._store(level + 1, block, by):
            self._counts["demoted"] += 1
        else:
            self._born.pop(identity, None)
            self._counts["evicted"] += 1

    def _remove(self, level: int, identity: str) -> None:
        self._ledgers[level].remove(identity)
        self.tiers[level].delete(identity)
