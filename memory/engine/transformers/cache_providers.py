"""Cache providers: make the session caches of one model, which may share exact rows (those of a plain forward)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memory.engine.attention.function import Angles
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import CacheProvider
from memory.engine.models.model_spec import ModelSpec
from memory.engine.transformers.decoder import Decoder
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.prefix_index import SlotPrefixIndex
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache


class PagedCacheProvider:
    """Provider of caches whose rows lie in one pool; sessions share the exact rows of a common prefix."""

    def __init__(self, spec: ModelSpec, device: torch.device, block_size: int, prefix_tokens: int) -> None:
        self._windows = spec.windows
        self.pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, device)
        self.index = SlotPrefixIndex(self.pool, block_size, prefix_tokens, spec.model_key)

    @property
    def block_size(self) -> int:
        return self.index.block_size

    def cache(self, counts_mass: bool = False) -> PagedCache:
        return PagedCache(self.pool, AttentionObserver(mass=counts_mass, windows=self._windows))

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
    """Provider of quantized caches. Sessions share no rows, because quantized rows are not exact."""

    def __init__(self, spec: ModelSpec, device: torch.device, format: PackFormat) -> None:
        self._spec, self._device, self._format = spec, device, format

    def cache(self, counts_mass: bool = False) -> QuantizedCache:
        observer = AttentionObserver(mass=counts_mass, windows=self._spec.windows)
        return QuantizedCache(self._spec, self._format, self._device, observer)


@torch.inference_mode()
def compact(decoder: Decoder, cache: PagedCache) -> None:
    """Give the live rows of ``cache`` the positions 0, 1, ..., and rotate the rows' keys to these positions."""
    rows = torch.arange(cache.length, device=decoder.device)
    displaced = rows[cache.positions != rows]
    if not displaced.numel():
        return
    first = int(displaced[0])
    old, new = cache.positions[first:], rows[first:]
    top = int(old[-1]) + 1
    keys = torch.stack([cache.keys(layer)[:, first:] for layer in range(decoder.spec.layers)])
    back = {}
    for key, (cos, sin) in _doubled(decoder.rope.angles_at(old, top)).items():
        factor = cos.square() + sin.square()  # not 1 with yarn, which scales cos and sin
        back[key] = cos / factor, -sin / factor
    unrotated = decoder.rope.rotate_layers(keys.double(), back)
    rotated = decoder.rope.rotate_layers(unrotated, _doubled(decoder.rope.angles_at(new, top)))
    cache.renumber(first, rotated.to(keys.dtype))


def _doubled(angles: Angles) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {key: (cos.double(), sin.double()) for key, (cos, sin) in angles.items()}
