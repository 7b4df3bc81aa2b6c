"""Agents' rows in memory: in order of their last use, within a budget, none longer than it may stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from keep_agent.errors import CapacityError
from memory.agents.text_match import TokenText
from memory.kv_cache.quantized import BLOCK, QuantizedCache

Key = tuple[str, str]  # agent and model


@dataclass
class CacheEntry:
    """One agent's rows for one model, and the text they stand for."""

    cache: QuantizedCache
    told: TokenText
    used: float
    changed: bool = False  # since it was given to the writer


class HostCache(OrderedDict[Key, CacheEntry]):
    """What is held, least recently used first."""

    def sizes(self, shared: Iterable[CacheEntry]) -> dict[Key, int]:
        """Bytes that only one agent holds; what lies in ``shared`` caches is left out."""
        theirs = {extent.k.codes.data_ptr() for held in shared for extent in held.cache.extents}
        return {key: private_bytes(held.cache, theirs) for key, held in self.items()}

    def late(self, before: float, kept: Collection[Key]) -> list[Key]:
        """Which were last used ``before``, but for ``kept`` ones."""
        return [key for key, held in self.items() if held.used < before and key not in kept]


def private_bytes(cache: QuantizedCache, theirs: Collection[int]) -> int:
    """Bytes of a cache's rows without those in blocks that begin at the addresses ``theirs``."""
    base, lent = 0, 0.0
    for extent in cache.extents:
        rows = min(cache.packed - base, extent.blocks * BLOCK)
        lent += extent.row_bytes * rows if extent.k.codes.data_ptr() in theirs else 0
        base += extent.blocks * BLOCK
    return cache.nbytes - round(lent)


@dataclass(frozen=True)
class Room:
    """A budget of bytes. Who holds no more than ``quota`` is not put out by others."""

    budget: int | None
    quota: int = 0

    def victims(self, sizes: dict[Key, int], fixed: int, own: Key, kept: Collection[Key]) -> list[Key]:
        """Who has to go, least recently used first and in the end ``own``; ``kept`` ones and ``fixed`` bytes stay."""
        over = 0 if self.budget is None else fixed + sum(sizes.values()) - self.budget
        chosen = []
        others = [key for key, size in sizes.items() if key not in kept and key != own and size > self.quota]
        for key in [*others, *([own] if own in sizes and own not in kept else [])]:
            if over > 0 and sizes[key]:
                chosen.append(key)
                over -= sizes[key]
        return chosen

    def check(self, protected: int) -> None:
        """Raise CapacityError if what nobody may put out is more than there is room for."""
        if self.budget is not None and protected > self.budget:
            raise CapacityError(
                f"{protected} bytes are shared, pinned or within their quota, but host_bytes={self.budget}: raise it, "
                "lower quota_bytes, or unpin agents"
            )
