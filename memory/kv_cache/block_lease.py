"""Leases of blocks: references of several sessions to the blocks of one storage.

A lease is no ledger: references decide when a block is deleted because no session needs it any more, the storage's
budget (`memory.kv_cache.block`) decides which are evicted although sessions may need them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from memory.kv_cache.block import KVBlock
from memory.stages import Storage

UNUSED = 1000  # prompts: a session drops the blocks that none of its last ones has used


class BlockPool:
    """References to the blocks of a storage. A block is deleted with its last reference.

    The storage may drop any block on its own, by its budget; a reference keeps a block from being deleted by another
    session, not from being evicted.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.references: Counter[str] = Counter()

    def lease(self, namespace: str = "") -> BlockLease:
        return BlockLease(self, namespace)

    def forget(self, namespace: str) -> None:
        """Delete all blocks of a namespace, in use or not; where the storage persists, for good."""
        for entry in self.storage.entries():
            if entry.owner == namespace:
                self.storage.delete(entry.key)
        self.storage.flush()


class BlockLease:
    """One session's references to a pool: looks blocks up, stores them, and drops all of them at once.

    The blocks that it stores take up the share of ``namespace``.
    """

    def __init__(self, pool: BlockPool, namespace: str = "") -> None:
        self._pool, self._namespace = pool, namespace
        self._last_use: dict[str, int] = {}  # number of the last prompt that used a block, by identity; the latest last
        self._prompts = 0
        self._put: dict[str, int] | None = None  # returned by `watch`

    def get(self, identity: str) -> KVBlock | None:
        block = self._pool.storage.get(identity)
        if block is not None:
            self._use(identity)
        return block

    def contains(self, identity: str) -> bool:
        return self._pool.storage.contains(identity)

    def keep(self, identities: Iterable[str]) -> None:
        """Count these as used by this prompt, though it may not read them."""
        for identity in identities:
            self._use(identity)

    def verify(self, identity: str) -> bool:
        return self._pool.storage.verify(identity)

    def put(self, block: KVBlock) -> None:
        mine = bool(self._namespace) and not block.namespace
        self._pool.storage.put(replace(block, namespace=self._namespace) if mine else block)
        if self._put is not None:
            self._put[block.identity] = block.tokens
        self._use(block.identity)
        if len(self._last_use) > 2 * self._pool.storage.stats()["blocks"] + 1024:
            self._drop_evicted()

    def discard(self, identity: str) -> None:
        """Delete a damaged block for all sessions; references to it stay, as to one that was evicted."""
        self._pool.storage.delete(identity)

    def watch(self) -> dict[str, int]:
        """Return the tokens of the blocks that are put from now on, by identity: grows until the next call."""
        self._put = {}
        return self._put

    def release(self, delete: bool = True) -> None:
        """Drop every reference; blocks without another are deleted, or left to the storage."""
        while self._last_use:
            self._unreference(self._last_use.popitem()[0], delete)

    def drop(self, identity: str) -> None:
        """Drop the reference to one block, if there is one."""
        if self._last_use.pop(identity, None) is not None:
            self._unreference(identity)

    def next_prompt(self) -> None:
        """Finish a prompt; references to blocks that the last `UNUSED` prompts did not use are dropped."""
        self._prompts += 1
        oldest = self._prompts - UNUSED
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

    def _drop_evicted(self) -> None:
        for identity in [name for name in self._last_use if not self._pool.storage.contains(name)]:
            self.drop(identity)
