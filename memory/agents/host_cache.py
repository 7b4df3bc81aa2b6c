"""Host cache: agents' rows in memory, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from memory.agents.text_match import TokenText
from memory.kv_cache.cache_ledger import CacheLedger, Entry
from memory.kv_cache.quantized import QuantizedCache

Key = tuple[str, str]  # agent and model


@dataclass
class AgentRows:
    """One agent's rows for one model, and the text they stand for."""

    cache: QuantizedCache
    token_text: TokenText
    used: float  # seconds since 1970
    changed: bool = False  # since they were given to the writer


class HostCache(OrderedDict[Key, AgentRows]):
    """Rows by agent and model. Forks share blocks, so the bytes of each are counted when they are needed."""

    def ledger(self, shared: Iterable[AgentRows] = ()) -> CacheLedger[Entry]:
        """Enter the bytes that only one agent has; blocks of the ``shared`` caches are left out."""
        addresses = {extent.k.codes.data_ptr() for rows in shared for extent in rows.cache.extents}
        return CacheLedger(
            Entry(key, private_bytes(rows.cache, addresses), key, rows.used) for key, rows in self.items()
        )


def private_bytes(cache: QuantizedCache, shared: Collection[int]) -> int:
    """Count the bytes of a cache's rows without those in blocks that begin at the addresses ``shared``."""
    common = (
        extent.row_bytes * min(cache.packed - base, extent.capacity)
        for base, extent in cache.placed()
        if extent.k.codes.data_ptr() in shared
    )
    return cache.nbytes - round(sum(common))
