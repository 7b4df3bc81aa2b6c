"""Where the caches of sessions that go on from turn to turn lie, and what sessions share of them."""

from __future__ import annotations

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
    """A working cache that knows its tokens, and lets go of rows."""

    tokens: list[int]
    exact: int  # the first so many positions are live and what a plain forward gives

    def cut(self, position: int) -> None: ...
    def drop(self, keep: torch.Tensor) -> None: ...
    def fork(self) -> EvictableCache: ...
    def keys(self, layer: int) -> torch.Tensor: ...


class CacheProvider(Protocol):
    """What all sessions of a method share for one model."""

    def cache(self, witness: AttentionObserver) -> EvictableCache:
        """An empty one."""
        ...

    def take(self, cache: EvictableCache, ids: Sequence[int], namespace: str, more_than: int) -> int:
        """Begin ``cache`` anew with the rows of others that ``ids`` begin with, if they are ``more_than`` so many.

        Returns how many; 0: the cache is as it was.
        """
        ...

    def publish(self, cache: EvictableCache, namespace: str) -> list[str]:
        """Share the exact rows of ``cache``; names of the blocks, in order."""
        ...

    def withdraw(self, cache: EvictableCache, names: Sequence[str]) -> None:
        """Share these blocks of ``cache`` no more, unless somebody else uses them."""
        ...

    def shares(self, name: str) -> bool:
        """Is there a block of this name?"""
        ...

    @property
    def block_size(self) -> int: ...


class PagedCacheProvider:
    """Rows in the slots of one pool; exact ones are found again as a prefix."""

    def __init__(self, engine: Engine, construction: Construction) -> None:
        spec = engine.spec
        self.pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.decoder.device)
        self.index = SlotPrefixIndex(self.pool, construction.block_size, construction.prefix_tokens, engine.model_key)

    @property
    def block_size(self) -> int:
        return self.index.block_size

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


class QuantizedCacheProvider:
    """Packed rows belong to one session alone: they are not what a plain forward gives."""

    block_size = 1

    def __init__(self, engine: Engine, format: PackFormat) -> None:
        self._engine, self._format = engine, format

    def cache(self, witness: AttentionObserver) -> QuantizedCache:
        return QuantizedCache(self._engine.spec, self._format, self._engine.decoder.device, witness)

    def take(self, cache: QuantizedCache, ids: Sequence[int], namespace: str, more_than: int) -> int:
        return 0

    def publish(self, cache: QuantizedCache, namespace: str) -> list[str]:
        return []

    def withdraw(self, cache: QuantizedCache, names: Sequence[str]) -> None:
        """Nothing is shared."""

    def shares(self, name: str) -> bool:
        return False
