"""Approximate segment index: it finds stored rows by a hash of their own tokens, at any position of a prompt.

`memory.kv_cache.prefix_index` is the exact index, for rows that were computed with all tokens before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import BlockLease, BlockPool, identity


def segment_hash(model_key: str, token_ids: Sequence[int], extra_key: str = "", before: Sequence[int] = ()) -> str:
    """Compute SparseX's virtual hash (arXiv 2606.01751, section 4.4), which does not depend on the position.

    Equal hashes mean equal model, tokens, extra key and tokens ``before``. A hash is the same in every process.
    """
    return identity(f"virtual block of {model_key}", before, token_ids, extra_key)


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """Rows ``start:stop`` of a stored KV block."""

    physical: str  # identity of the block
    start: int
    stop: int
    number: int  # number of the insertion; later entries have larger ones


class SegmentIndex:
    """Map from segment hashes to rows of a pool's blocks. Several entries may point into one block.

    The pool may lose (evict or delete) a block at any time; `find` then deletes the entry.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._entries: dict[str, SegmentEntry] = {}
        self._numbers = count()
        self._prune_above = 1024  # number of entries above which entries of lost blocks are dropped

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        entry = self._entries.get(name)
        return entry is not None and self._pool.storage.contains(entry.physical)

    def insert(self, name: str, physical: str, start: int, stop: int) -> None:
        """Map ``name`` to rows ``start:stop`` of ``physical``."""
        self._entries[name] = SegmentEntry(physical, start, stop, next(self._numbers))
        if len(self._entries) > self._prune_above:
            stored = self._pool.storage.contains
            self._entries = {name: entry for name, entry in self._entries.items() if stored(entry.physical)}
            self._prune_above = 2 * len(self._entries) + 1024

    def find(self, name: str, lease: BlockLease) -> KVBlock | None:
        """Return a view of the rows of ``name``, whose block ``lease`` refers to from now on; None if not stored."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        block = lease.get(entry.physical)
        if block is None:
            del self._entries[name]
            return None
        return block.part(entry.start, entry.stop)

    def delete(self, name: str) -> SegmentEntry | None:
        """Delete one entry and return it; the block stays."""
        return self._entries.pop(name, None)

    def physical(self, name: str) -> str | None:
        """Return the identity of the block that ``name`` points into."""
        entry = self._entries.get(name)
        return None if entry is None else entry.physical

    def number(self, name: str) -> int:
        """Return the number of the insertion of ``name``; -1 if there is no entry."""
        entry = self._entries.get(name)
        return -1 if entry is None else entry.number

    def names(self, physical: str) -> list[str]:
        """List the names that point into a block."""
        return [name for name, entry in self._entries.items() if entry.physical == physical]
