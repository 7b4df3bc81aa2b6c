"""Block store: KV blocks (stored keys and values) by identity, within a byte budget, and references to the blocks.

If the blocks exceed the budget, the least recently used are evicted. Dropping a block's last reference deletes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Generic, TypeVar

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.block import Entry, KVBlock
from memory.stages import Storage

MAX_UNUSED_PROMPTS = 1000  # a session drops its reference to a block that this many prompts in a row have not used


def identity(model_key: str, context_ids: Sequence[int], token_ids: Sequence[int], namespace: str = "") -> str:
    """Name a block. Equal names mean equal model, dtype and RoPE (all in ``model_key``), context, tokens and namespace.

    The name is the SHA-256 digest of an unambiguous byte string, so it is the same in every process.
    """
    digest = hashlib.sha256()
    for part in (model_key, namespace):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    for ids in (context_ids, token_ids):
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(np.asarray(ids, "<u4").tobytes())
    return digest.hexdigest()


E = TypeVar("E", bound=Entry)
EvictionRule = Callable[[E, int], bool]  # (entry, total bytes of its owner) -> whether the entry may be evicted


class CacheLedger(Generic[E]):
    """Entries of a cache, the least recently used first. ``shares`` has the total bytes of each owner's entries."""

    def __init__(self, entries: Iterable[E] = ()) -> None:
        self._entries: OrderedDict[Hashable, E] = OrderedDict()
        self.shares: Counter[Hashable] = Counter()
        for entry in entries:
            self.add(entry)

    @property
    def nbytes(self) -> int:
        return self.shares.total()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[E]:
        return iter(list(self._entries.values()))  # a copy: another thread may delete an entry during the loop

    def add(self, entry: E) -> None:
        """Add an entry as the most recently used; it replaces an entry with the same key."""
        self.remove(entry.key)
        self._entries[entry.key] = entry
        self.shares[entry.owner] += entry.nbytes

    def remove(self, key: Hashable) -> None:
        """Delete an entry, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.shares[entry.owner] -= entry.nbytes
            if not self.shares[entry.owner]:
                del self.shares[entry.owner]

    def touch(self, key: Hashable) -> None:
        """Mark an entry as the most recently used."""
        self._entries.move_to_end(key)

    def make_oldest(self, key: Hashable) -> None:
        """Mark an entry as the least recently used, if there is one."""
        if key in self._entries:
            self._entries.move_to_end(key, last=False)

    def expired(self, latest: float) -> list[E]:
        """List the entries with a timestamp up to ``latest``; the ledger must be sorted by timestamp."""
        return list(takewhile(lambda entry: entry.timestamp <= latest, self))

    def victims(self, excess: float, *rules: EvictionRule[E]) -> list[E]:
        """Choose least recently used entries until they free ``excess`` bytes in all, or no rule allows another entry.

        Without rules any entry may be chosen. The second rule is used only if the first rule frees too little.
        """
        victims: dict[Hashable, E] = {}
        shares = self.shares.copy() if excess > 0 else self.shares
        for rule in rules or (lambda entry, share: True,):
            for entry in self:
                if excess <= 0:
                    break
                if entry.key not in victims and rule(entry, shares[entry.owner]):
                    victims[entry.key] = entry
                    shares[entry.owner] -= entry.nbytes
                    excess -= entry.nbytes
        return list(victims.values())


class BlockStore:
    """Base class of storages in memory and on a disk. ``budget_bytes=None`` means that there is no limit."""

    budget_bytes: int | None
    device: str | None = None  # device to which blocks are moved; None: each block stays on its device
    ledger: CacheLedger[Entry]

    def __post_init__(self) -> None:
        if (self.budget_bytes or 0) < 0:
            raise ConfigError(f"budget_bytes={self.budget_bytes} is negative: use 0 or more, or null for no limit")
        self._blocks: dict[str, KVBlock] = {}  # blocks in memory, by identity
        self.ledger = CacheLedger()
        self._counts = dict.fromkeys(("hits", "misses", "evicted", "rejected"), 0)

    def stored_form(self, block: KVBlock) -> KVBlock:
        """Return the block as the storage keeps it: on ``device``, and in some subclasses packed into 4 or 8 bits."""
        if self.device is None or block.k.device == torch.device(self.device):
            return block
        return block.to(self.device)

    def put(self, block: KVBlock) -> None:
        """Store a block. A block that is bigger than the whole budget is not stored, but counted as rejected."""
        self.delete(block.identity)
        block = self.stored_form(block)
        entry = Entry(block.identity, block.k.nbytes + block.v.nbytes, block.namespace, block.created)
        if self.budget_bytes is not None and entry.nbytes > self.budget_bytes:
            self._counts["rejected"] += 1
            return
        self._insert(block, entry)
        self._evict()

    def get(self, identity: str) -> KVBlock | None:
        block = self.peek(identity)
        self._counts["misses" if block is None else "hits"] += 1
        if block is not None:
            self.ledger.touch(identity)
        return block

    def peek(self, identity: str) -> KVBlock | None:
        """Return a block, without counting a hit or marking the block as recently used."""
        return self._blocks.get(identity)

    def contains(self, identity: str) -> bool:
        return identity in self.ledger

    def verify(self, identity: str) -> bool:
        return self.contains(identity)

    def delete(self, identity: str) -> None:
        self._blocks.pop(identity, None)
        self.ledger.remove(identity)

    def entries(self) -> list[Entry]:
        """List the stored blocks, the least recently used first."""
        return list(self.ledger)

    def stats(self) -> dict[str, int]:
        """Count the stored blocks and bytes, and the hits, misses, evicted and rejected blocks since the start."""
        return {"blocks": len(self.ledger), "bytes": self.ledger.nbytes, **self._counts}

    def _insert(self, block: KVBlock, entry: Entry) -> None:
        self._blocks[block.identity] = block
        self.ledger.add(entry)

    def _evict(self) -> None:
        if self.budget_bytes is not None:
            for entry in self.ledger.victims(self.ledger.nbytes - self.budget_bytes):
                self.delete(entry.key)
                self._counts["evicted"] += 1


class BlockPool:
    """Reference counts of a storage's blocks. Without references a block is deleted; eviction ignores the counts."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.references: Counter[str] = Counter()

    def lease(self, namespace: str = "") -> BlockLease:
        return BlockLease(self, namespace)

    def forget(self, namespace: str) -> None:
        """Delete all blocks of a namespace, even blocks in use; a persistent storage deletes them on the disk, too."""
        for entry in self.storage.entries():
            if entry.owner == namespace:
                self.storage.delete(entry.key)
        self.storage.flush()


class BlockLease:
    """One session's references to blocks that it has read from a pool or stored there. `release` drops them all.

    Blocks that the session stores count toward the byte share of ``namespace``.
    """

    def __init__(self, pool: BlockPool, namespace: str = "") -> None:
        self._pool, self._namespace = pool, namespace
        self._last_use: dict[str, int] = {}  # block identity -> number of the last prompt that used it; oldest first
        self._prompts = 0
        self.stored: dict[str, int] | None = None  # identity of a stored block -> its number of tokens; None: no record

    def get(self, identity: str) -> KVBlock | None:
        block = self._pool.storage.get(identity)
        if block is not None:
            self._use(identity)
        return block

    def contains(self, identity: str) -> bool:
        return self._pool.storage.contains(identity)

    def keep(self, identities: Iterable[str]) -> None:
        """Mark blocks as used by the current prompt, even if the prompt does not read them."""
        for identity in identities:
            self._use(identity)

    def verify(self, identity: str) -> bool:
        return self._pool.storage.verify(identity)

    def put(self, block: KVBlock) -> None:
        if self._namespace and not block.namespace:
            block = replace(block, namespace=self._namespace)
        self._pool.storage.put(block)
        if self.stored is not None:
            self.stored[block.identity] = block.k.shape[2]
        self._use(block.identity)
        if len(self._last_use) > 2 * self._pool.storage.stats()["blocks"] + 1024:
            for identity in [name for name in self._last_use if not self._pool.storage.contains(name)]:
                self.drop(identity)

    def discard(self, identity: str) -> None:
        """Delete a damaged block for all sessions; its references remain, as after an eviction."""
        self._pool.storage.delete(identity)

    def release(self, delete: bool = True) -> None:
        """Drop every reference of this lease; with ``delete``, blocks to which no other lease refers are deleted."""
        while self._last_use:
            self._unreference(self._last_use.popitem()[0], delete)

    def drop(self, identity: str) -> None:
        """Drop the reference to one block, if there is one."""
        if self._last_use.pop(identity, None) is not None:
            self._unreference(identity)

    def next_prompt(self) -> None:
        """Finish a prompt, and drop references to blocks that the last `MAX_UNUSED_PROMPTS` prompts did not use."""
        self._prompts += 1
        oldest = self._prompts - MAX_UNUSED_PROMPTS
        for identity in [*takewhile(lambda identity: self._last_use[identity] < oldest, self._last_use)]:
            self.drop(identity)

    def _use(self, identity: str) -> None:
        if self._last_use.pop(identity, None) is None:
            self._pool.references[identity] += 1
        self._last_use[identity] = self._prompts

    def _unreference(self, identity: str, delete: bool = True) -> None:
        references = self._pool.references
        references[identity] -= 1
        if not references[identity]:
            del references[identity]
            if delete:
                self._pool.storage.delete(identity)
