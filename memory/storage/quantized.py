"""Quantized storage: blocks in memory in 4 or 8 bits, unpacked when they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from memory.kv_cache.block import KVBlock
from memory.kv_cache.packed_rows import PackedRows
from memory.kv_cache.quantization import Axis, PackFormat
from memory.stages import Capabilities
from memory.storage.ram import Ram


@dataclass
class Quantized(Ram):
    """Blocks in Semantic's format ("Agent Memory Below the Prompt"): each group of numbers has a scale and a bias.

    ``budget_bytes`` limits packed bytes. With 4 bits, the same budget holds 3.5 times the tokens of 16-bit numbers.
    ``keys="channel"`` (KIVI, arXiv 2402.02750) packs keys in groups of ``group`` tokens of one channel. Only whole
    groups are packed by channel; the remaining keys of a block, and all values, are packed by token.
    """

    bits: Literal[4, 8] = 4
    group: int = 64  # numbers that share a scale and a bias
    keys: Axis = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, in_memory=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.format = PackFormat(self.bits, self.group, self.keys)

    def stored_form(self, block: KVBlock) -> KVBlock:
        """Pack a block unless it is packed already, so that no block is rounded twice."""
        if not isinstance(block.k, PackedRows):
            k, v = PackedRows.of(block.k, self.format, self.keys), PackedRows.of(block.v, self.format)
            block = replace(block, k=k, v=v)
        return super().stored_form(block)
