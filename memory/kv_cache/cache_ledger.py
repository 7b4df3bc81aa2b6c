"""Cache ledger: entries of a cache in order of use, their bytes, and the victims of a budget or a time to live.

Every cache keeps its books here: blocks in memory and on a disk, tiers, pinned blocks, agents' rows and agents' files.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a cache, without its content."""

    key: Any  # hashable
    nbytes: int
    owner: Hashable = ""  # the namespace or agent whose share of the budget it takes up
    timestamp: float = 0.0  # seconds since 1970 from which its time to live counts


E = TypeVar("E", bound=Entry)
Rule = Callable[[E, int], bool]  # may this entry be evicted, while its owner has so many bytes?


class CacheLedger(Generic[E]):
    """Entries, the least recently used first; ``shares`` are the bytes of each owner."""

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
        return iter(list(self._entries.values()))  # another thread may delete a damaged block meanwhile

    def add(self, entry: E) -> None:
        """Enter an item as the most recently used, in place of one with the same key."""
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
        """Make an entry the most recently used."""
        self._entries.move_to_end(key)

    def make_oldest(self, key: Hashable) -> None:
        """Make an entry the least recently used, if it is there."""
        if key in self._entries:
            self._entries.move_to_end(key, last=False)

    def expired(self, latest: float) -> list[E]:
        """List the entries of ``latest`` or before, in a ledger whose order is that of the timestamps."""
        return list(takewhile(lambda entry: entry.timestamp <= latest, self))

    def victims(self, excess: float, *rules: Rule[E]) -> list[E]:
        """Choose the least recently used entries that free ``excess`` bytes, or fewer if the rules allow no more.

        Without a rule every entry may go; of several rules, each is applied once the one before it frees too little.
        """
        chosen: dict[Hashable, E] = {}
        shares = self.shares.copy() if excess > 0 else self.shares
        for rule in rules or (lambda entry, share: True,):
            for entry in self:
                if excess <= 0:
                    break
                if entry.key not in chosen and rule(entry, shares[entry.owner]):
                    chosen[entry.key] = entry
                    shares[entry.owner] -= entry.nbytes
                    excess -= entry.nbytes
        return list(chosen.values())
