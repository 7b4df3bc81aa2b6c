"""What rests in a storage, in order of use, and how many bytes it takes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from memory.kv_cache.block import KVBlock


@dataclass(frozen=True, slots=True)
class Entry:
    """One block, without its keys and values."""

    identity: str
    nbytes: int
    namespace: str = ""
    born: float = 0.0

    @classmethod
    def of(cls, block: KVBlock) -> Entry:
        return cls(block.identity, block.nbytes, block.namespace, block.born)


class Ledger:
    """Entries, the least recently used first; ``shares`` are the bytes of each namespace."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.shares: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        return self.shares.total()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, identity: object) -> bool:
        return identity in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        """Enter a block, in place of one of the same identity, as used last."""
        self.remove(entry.identity)
        self._entries[entry.identity] = entry
        self.shares[entry.namespace] += entry.nbytes

    def remove(self, identity: str) -> Entry | None:
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self.shares[entry.namespace] -= entry.nbytes
            if not self.shares[entry.namespace]:
                del self.shares[entry.namespace]
        return entry

    def touch(self, identity: str) -> None:
        """It was used last."""
        self._entries.move_to_end(identity)

    def age(self, identity: str) -> None:
        """It is the first that can be spared, if it is there."""
        if identity in self._entries:
            self._entries.move_to_end(identity, last=False)
