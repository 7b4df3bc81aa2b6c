"""Memory storage: blocks in the memory of the host or of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memory.kv_cache.block_store import BlockStore
from memory.stages import Capabilities


@dataclass
class Ram(BlockStore):
    """Storage of blocks in a hash table by identity.

    Blocks are moved to ``device``. None leaves blocks on their device, such as the GPU that computed them.
    """

    budget_bytes: int | None = 2 << 30
    device: str | None = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(in_memory=True)

    def open(self, model_key: str) -> None:
        """Change nothing: identities distinguish models."""

    def flush(self) -> None:
        """Change nothing: no block outlives the process."""
