"""Host cache: agents' rows in memory, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from memory.agents.text_match import TokenText
from memory.engine.base import PersistentCache
from memory.kv_cache.cache_ledger import CacheLedger, Entry

Key = tuple[str, str]  # agent and model


@dataclass
class AgentRows:
    """One agent's rows for one model, and the text they stand for."""

    cache: PersistentCache
    token_text: TokenText
    used: float  # seconds since 1970
    changed: bool = False  # since they were given to the writer


class HostCache(OrderedDict[Key, AgentRows]):
    """Rows by agent and model. Forks share blocks, so the bytes of each are counted when they are needed."""

    def ledger(self, shared: Iterable[AgentRows] = ()) -> CacheLedger[Entry]:
        """Enter the bytes that only one agent has; blocks of the ``shared`` caches are left out."""
        caches = [rows.cache for rows in shared]
        return CacheLedger(Entry(key, rows.cache.bytes_beside(caches), key, rows.used) for key, rows in self.items())
