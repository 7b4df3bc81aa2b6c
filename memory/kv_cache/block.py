"""KV blocks: the stored keys and values of one unit, and the identity that says when two are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from memory.kv_cache.cache_ledger import Entry
from memory.kv_cache.mapped_rows import Mapped

if TYPE_CHECKING:
    from memory.kv_cache.mapped_rows import MappedRows
    from memory.kv_cache.packed_rows import PackedRows


@dataclass(frozen=True, slots=True)
class KVBlock:
    """Keys and values of one unit, ``(layers, kv_heads, tokens, head_dim)`` each; keys are before RoPE.

    Packed rows stand in for a tensor, and unpack the layers and rows that they are indexed with; rows in a file verify
    them.
    """

    identity: str
    k: torch.Tensor | PackedRows | MappedRows
    v: torch.Tensor | PackedRows | MappedRows
    namespace: str = ""  # whose share of a storage it takes up
    created: float = 0.0  # seconds since 1970 when it was stored, where the storage keeps time

    @property
    def tokens(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @property
    def entry(self) -> Entry:
        """Its line in the ledger of a storage."""
        return Entry(self.identity, self.nbytes, self.namespace, self.created)

    def to(self, device: str) -> KVBlock:
        """Move the block to ``device``; packed rows stay packed."""
        if self.k.device == torch.device(device):
            return self
        return replace(self, k=self.k.to(device), v=self.v.to(device))

    @property
    def at_hand(self) -> bool:
        """Whether it can be read without a disk; mapped rows can once they have been read from end to end."""
        return not isinstance(self.k, Mapped) or self.k.guard.done

    def settled(self) -> KVBlock:
        """Return the block in memory; mapped rows are copied, so that the file is not needed any more.

        :raises DamagedError: the file does not hold what was written
        """
        if not isinstance(self.k, Mapped):
            return self
        return replace(self, k=self.k.copy(), v=self.v.copy())

    def part(self, start: int, stop: int) -> KVBlock:
        """View rows ``start:stop``, which the name of the part tells."""
        if (start, stop) == (0, self.tokens):
            return self
        k, v = (x.narrow(2, start, stop - start) for x in (self.k, self.v))
        return KVBlock(f"{self.identity}[{start}:{stop}]", k, v)


def joined(blocks: Sequence[KVBlock]) -> KVBlock | None:
    """Join the rows of all blocks in one without a name, on the device of the last; None of none."""
    if len(blocks) < 2:
        return blocks[0] if blocks else None
    blocks = [block.to(str(blocks[-1].k.device)) for block in blocks]
    return KVBlock("", torch.cat([block.k[:] for block in blocks], 2), torch.cat([block.v[:] for block in blocks], 2))


def resting(x: torch.Tensor) -> torch.Tensor:
    """Bring keys or values (layers, kv_heads, tokens, head_dim) to host memory, as blocks store them.

    From CUDA they go to pinned memory, token by token within a layer: then every run of a layer's rows is one piece,
    which a copy back takes at once. Memory that host and device share (MPS) is left alone.
    """
    if x.device.type != "cuda":
        return x if x.device.type == "mps" else x.cpu()
    rows = x.transpose(1, 2)
    return torch.empty(rows.shape, dtype=x.dtype, pin_memory=True).copy_(rows).transpose(1, 2)


def identity(model_key: str, context_ids: Sequence[int], token_ids: Sequence[int], namespace: str = "") -> str:
    """Name a block: equal only if model, dtype and RoPE (all in ``model_key``), context, tokens and namespace are.

    Built on SHA-256 of an unambiguous byte string, so it is the same in every process.
    """
    digest = hashlib.sha256()
    for part in (model_key, namespace):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    for ids in (context_ids, token_ids):
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(np.asarray(ids, "<u4").tobytes())
    return digest.hexdigest()
