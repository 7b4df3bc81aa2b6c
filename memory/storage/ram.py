"""Blocks in memory, the host's or a device's, within a budget of bytes; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock
from memory.stages import Capabilities
from memory.storage.ledger import Entry


@dataclass
class Ram:
    """A hash table from identity to block. ``budget_bytes=None`` is no limit.

    Blocks rest on ``device``; None leaves them where they were computed, as a tier in front of the host's does.
    """

    budget_bytes: int | None = 2 << 30
    device: str | None = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(in_memory=True)
    _blocks: OrderedDict[str, KVBlock] = field(default_factory=OrderedDict, init=False, repr=False)
    _bytes: int = field(default=0, init=False)
    _counts: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < 0:
            raise ConfigError(f"budget_bytes={self.budget_bytes} is negative: use 0 or more, or null for no limit")
        self._counts = {"hits": 0, "misses": 0, "evicted": 0, "rejected": 0}

    def open(self, model_key: str) -> None:
        """Identities tell models apart."""

    def form(self, block: KVBlock) -> KVBlock:
        """The block as it rests here."""
        return block if self.device is None else block.to(self.device)

    def put(self, block: KVBlock) -> None:
        """Store a block; one that is bigger than the whole budget is rejected, which the statistics show."""
        self.delete(block.identity)
        block = self.form(block)
        if self.budget_bytes is not None and block.nbytes > self.budget_bytes:
            self._counts["rejected"] += 1
            return
        self._blocks[block.identity] = block
        self._bytes += block.nbytes
        while self.budget_bytes is not None and self._bytes > self.budget_bytes:
            self.delete(next(iter(self._blocks)))
            self._counts["evicted"] += 1

    def get(self, identity: str) -> KVBlock | None:
        block = self._blocks.get(identity)
        if block is None:
            self._counts["misses"] += 1
            return None
        self._counts["hits"] += 1
        self._blocks.move_to_end(identity)
        return block

    def get_layer(self, identity: str, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        block = self.get(identity)
        return None if block is None else (block.k[layer], block.v[layer])

    def contains(self, identity: str) -> bool:
        return identity in self._blocks

    def sound(self, identity: str) -> bool:
        return self.contains(identity)

    def delete(self, identity: str) -> None:
        block = self._blocks.pop(identity, None)
        if block is not None:
            self._bytes -= block.nbytes

    def entries(self) -> list[Entry]:
        """What rests here, the least recently used first."""
        return [Entry.of(block) for block in self._blocks.values()]

    def stats(self) -> dict[str, int]:
        """blocks, bytes, and since the beginning: hits, misses, evicted, rejected."""
        return {"blocks": len(self._blocks), "bytes": self._bytes, **self._counts}

    def flush(self) -> None:
        """Nothing here outlives the process."""
