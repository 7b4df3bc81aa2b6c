"""Blocks of several sessions in one storage: what one of them lets go may still be another's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from memory.kv_cache.block import KVBlock
from memory.stages import Storage

UNUSED = 1000  # prompts: what none of a session's last ones has used is let go of


class BlockPool:
    """References to the blocks of a storage. A block is deleted when its last holder lets go.

    The storage may drop any block on its own, by its budget; a reference keeps a block from being deleted by another
    session, not from being evicted.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.references: Counter[str] = Counter()

    def holder(self, namespace: str = "") -> BlockLease:
        return BlockLease(self, namespace)

    def forget(self, namespace: str) -> None:
        """Delete what sessions of a namespace have stored, whoever holds it; where the storage persists, for good."""
        for entry in self.storage.entries():
            if entry.owner == namespace:
                self.storage.delete(entry.key)
        self.storage.flush()


class BlockLease:
    """One session's view of a pool: looks up, stores, and lets go of everything at once.

    What it stores takes up the share of ``namespace``.
    """

    def __init__(self, pool: BlockPool, namespace: str = "") -> None:
        self._pool, self._namespace = pool, namespace
        self._held: dict[str, int] = {}  # number of the last prompt that used it, by identity; the latest last
        self._prompts = 0
        self._put: dict[str, int] | None = None  # what `watch` gave out

    def get(self, identity: str) -> KVBlock | None:
        block = self._pool.storage.get(identity)
        if block is not None:
            self._hold(identity)
        return block

    def contains(self, identity: str) -> bool:
        return self._pool.storage.contains(identity)

    def keep(self, identities: Iterable[str]) -> None:
        """These count as used by this prompt, though it may not read them."""
        for identity in identities:
            self._hold(identity)

    def verify(self, identity: str) -> bool:
        return self._pool.storage.verify(identity)

    def put(self, block: KVBlock) -> None:
        mine = bool(self._namespace) and not block.namespace
        self._pool.storage.put(replace(block, namespace=self._namespace) if mine else block)
        if self._put is not None:
            self._put[block.identity] = block.tokens
        self._hold(block.identity)
        if len(self._held) > 2 * self._pool.storage.stats()["blocks"] + 1024:
            self._forget_evicted()

    def discard(self, identity: str) -> None:
        """Delete a block whoever holds it, because it is damaged; it stays held, as one that was evicted does."""
        self._pool.storage.delete(identity)

    def watch(self) -> dict[str, int]:
        """Tokens of the blocks that are put from now on, by identity: grows until the next call."""
        self._put = {}
        return self._put

    def release(self, delete: bool = True) -> None:
        """Let go of every block; those nobody else holds are deleted, or left to the storage."""
        while self._held:
            self._drop(self._held.popitem()[0], delete)

    def drop(self, identity: str) -> None:
        """Let go of one block, if it is held."""
        if self._held.pop(identity, None) is not None:
            self._drop(identity)

    def next_prompt(self) -> None:
        """A prompt is finished; blocks that the last `UNUSED` prompts did not use are let go of."""
        self._prompts += 1
        oldest = self._prompts - UNUSED
        for identity in [*takewhile(lambda one: self._held[one] < oldest, self._held)]:
            self.drop(identity)

    def _hold(self, identity: str) -> None:
        if self._held.pop(identity, None) is None:
            self._pool.references[identity] += 1
        self._held[identity] = self._prompts

    def _drop(self, identity: str, delete: bool = True) -> None:
        references = self._pool.references
        references[identity] -= 1
        if not references[identity]:
            del references[identity]
            if delete:
                self._pool.storage.delete(identity)

    def _forget_evicted(self) -> None:
        gone = {identity for identity in self._held if not self._pool.storage.contains(identity)}
        for identity in gone:
            self.drop(identity)
