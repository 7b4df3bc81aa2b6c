"""Memory storage: blocks in the memory of the host or of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memory.kv_cache.block import KVBlock
from memory.stages import Capabilities
from memory.storage.block_store import BlockStore


@dataclass
class Ram(BlockStore):
    """A hash table from identity to block.

    Blocks are moved to ``device``; None leaves them where they were computed, as a tier in front of the host's does.
    """

    budget_bytes: int | None = 2 << 30
    device: str | None = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(in_memory=True)

    def open(self, model_key: str) -> None:
        """Do nothing: identities tell models apart."""

    def form(self, block: KVBlock) -> KVBlock:
        return block if self.device is None else block.to(self.device)

    def flush(self) -> None:
        """Do nothing: no block outlives the process."""
