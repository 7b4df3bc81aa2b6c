"""KV block (stored keys and values of tokens that were computed together), and the ledger entry of a block."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from memory.kv_cache.packed_rows import Mapped

if TYPE_CHECKING:
    from memory.kv_cache.packed_rows import MappedRows, PackedRows


@dataclass(frozen=True, slots=True)
class KVBlock:
    """Keys and values of one memory unit, ``(layers, kv_heads, tokens, head_dim)`` each. Keys are stored before RoPE.

    Indexing `PackedRows` unpacks the indexed rows (4 or 8 bits); indexing `MappedRows` verifies the indexed rows.
    """

    identity: str
    k: torch.Tensor | PackedRows | MappedRows
    v: torch.Tensor | PackedRows | MappedRows
    namespace: str = ""  # owner of the block; the block's bytes count toward the owner's share of a storage
    created: float = 0.0  # Unix time of storing; 0 if the storage does not record it

    @property
    def tokens(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def entry(self) -> Entry:
        return Entry(self.identity, self.nbytes, self.namespace, self.created)

    def to(self, device: str) -> KVBlock:
        """Move the block to ``device``; packed rows stay packed."""
        if self.k.device == torch.device(device):
            return self
        return replace(self, k=self.k.to(device), v=self.v.to(device))

    @property
    def is_loaded(self) -> bool:
        """Whether the block can be read without disk access: it is in memory, or all its mapped rows are verified."""
        return not isinstance(self.k, Mapped) or self.k.verifier.is_verified

    def in_memory(self) -> KVBlock:
        """Return the block in memory; mapped rows are copied, so that the file is no longer needed.

        :raises DamagedError: the file has changed since it was written
        """
        if not isinstance(self.k, Mapped):
            return self
        return replace(self, k=self.k.copy(), v=self.v.copy())

    def part(self, start: int, stop: int) -> KVBlock:
        """View rows ``start:stop`` as a block whose identity includes ``start:stop``, without owner and time."""
        if (start, stop) == (0, self.tokens):
            return self  # all rows: the block itself, with its identity, owner and time
        k, v = (x.narrow(2, start, stop - start) for x in (self.k, self.v))
        return KVBlock(f"{self.identity}[{start}:{stop}]", k, v)


@dataclass(frozen=True, slots=True)
class Entry:
    """Ledger entry: the key, size, owner and time of one item of a cache, such as a KV block in a storage."""

    key: Any  # hashable
    nbytes: int
    owner: Hashable = ""  # namespace or agent; the item's bytes count toward the owner's share of the budget
    timestamp: float = 0.0  # Unix time at which the item's time to live starts
