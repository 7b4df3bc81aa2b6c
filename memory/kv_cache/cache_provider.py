"""Cache providers: working caches of sessions that continue from turn to turn, and the rows that these share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from memory.construction.turns import Turns as Construction
from memory.engine.attention.observer import AttentionObserver
from memory.engine.transformers.engine import Engine
from memory.kv_cache.dense import KVCache
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from memory.kv_cache.slot_prefix_index import SlotPrefixIndex


class EvictableCache(KVCache, Protocol):
    """A working cache that knows its tokens, and can drop rows."""

    tokens: list[int]
    exact: int  # the first so many positions are live and what a plain forward gives

    def cut(self, position: int) -> None: ...
    def drop(self, keep: torch.Tensor) -> None: ...
    def fork(self) -> EvictableCache: ...
    def keys(self, layer: int) -> torch.Tensor: ...


class CacheProvider(ABC):
    """The caches of a method's sessions for one model. Nothing is shared, unless a provider says how."""

    block_size = 1

    @abstractmethod
    def cache(self, witness: AttentionObserver) -> EvictableCache:
        """Make an empty cache."""

    def take(self, cache: EvictableCache, ids: Sequence[int], namespace: str, more_than: int) -> int:
        """Restart ``cache`` with the rows of others that ``ids`` begin with, if they are ``more_than`` so many.

        Returns how many; 0: the cache is as it was.
        """
        return 0

    def publish(self, cache: EvictableCache, namespace: str) -> list[str]:
        """Share the exact rows of ``cache``; returns the names of the blocks, in order."""
        return []

    def withdraw(self, cache: EvictableCache, names: Sequence[str]) -> None:  # noqa: B027
        """Stop sharing these blocks of ``cache``, unless another cache uses them."""

    def shares(self, name: str) -> bool:
        """Whether there is a block of this name."""
        return False


class PagedCacheProvider(CacheProvider):
    """Rows in the slots of one pool; exact ones are found again as a prefix."""

    def __init__(self, engine: Engine, construction: Construction) -> None:
        spec = engine.spec
        self.pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.decoder.device)
        self.index = SlotPrefixIndex(self.pool, construction.block_size, construction.prefix_tokens, engine.model_key)
        self.block_size = self.index.block_size

    def cache(self, witness: AttentionObserver) -> PagedCache:
        return PagedCache(self.pool, witness)

    def take(self, cache: PagedCache, ids: Sequence[int], namespace: str, more_than: int) -> int:
        names = self.index.names(ids, namespace)
        with self.pool.lock:
            slots = self.index.match(names)
            if slots.numel() <= more_than:
                return 0
            cache.adopt(slots, ids[: slots.numel()])
        return slots.numel()

    def publish(self, cache: PagedCache, namespace: str) -> list[str]:
        names = self.index.names(cache.tokens[: cache.exact], namespace)
        self.index.insert(names, cache.slot_map, cache.exact)
        return names

    def withdraw(self, cache: PagedCache, names: Sequence[str]) -> None:
        self.index.forget(names, cache.slots)

    def shares(self, name: str) -> bool:
        return name in self.index


class QuantizedCacheProvider(CacheProvider):
    """Packed rows, which belong to one session alone: they are not what a plain forward gives."""

    def __init__(self, engine: Engine, format: PackFormat) -> None:
        self._engine, self._format = engine, format

    def cache(self, witness: AttentionObserver) -> QuantizedCache:
        return QuantizedCache(self._engine.spec, self._format, self._engine.decoder.device, witness)
