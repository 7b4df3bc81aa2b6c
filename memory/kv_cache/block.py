"""KV blocks: the stored keys and values of one unit, and the identity that says when two are the same."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from memory.kv_cache.packed_rows import Mapped

if TYPE_CHECKING:
    from memory.kv_cache.packed_rows import MappedRows, PackedRows


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
