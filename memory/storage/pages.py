"""Blocks of one model in one file: their rows lie one behind the other, in pages of 256 with a checksum each.

A row holds a token's numbers of all layers, so that a block of any length is a mapped slice of the file. Where a block
lies, and whose it is, stands in the header. Format of the file: `memory.disk.blockfile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from keep_agent.errors import ConfigError
from memory.block import KVBlock
from memory.disk.agents import save_agent
from memory.disk.blockfile import NAMES, BlockFile
from memory.packed_rows import PackedRows
from memory.quantize import Packed, PackFormat
from memory.storage.ledger import Entry

PAGE = 256  # rows under one checksum
PARTS = ("codes", "scale", "bias")


@dataclass(frozen=True, slots=True)
class Form:
    """What all blocks of a file have in common; ``dtype`` as torch prints it, without "torch."."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    format: PackFormat | None  # None: unpacked

    @classmethod
    def of(cls, block: KVBlock, format: PackFormat | None) -> Form:
        layers, kv_heads, _, head_dim = block.k.shape
        return cls(layers, kv_heads, head_dim, str(block.k.dtype).removeprefix("torch."), format)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Form:
        format = said["format"]
        return cls(**{**said, "format": None if format is None else PackFormat(**format)})

    def shaped(self, block: KVBlock) -> KVBlock:
        """``block`` as it rests in the file: a copy's bytes are these.

        :raises ConfigError: it is another model's, or rounded and to be kept as if it were not
        """
        if Form.of(block, self.format) != self:
            raise ConfigError(f"a block of {Form.of(block, self.format)} does not fit into a file of {self}")
        if self.format is None and isinstance(block.k, PackedRows):
            raise ConfigError("a block that was rounded would be taken for exact: give the disk bits of its own")
        if self.format is None or self._packs(block.k):
            return block
        k, v = (PackedRows.of(x[:], self.format) for x in (block.k, block.v))
        return KVBlock(block.identity, k, v, block.namespace, block.born)

    def split(self, block: KVBlock) -> dict[str, torch.Tensor]:
        """Rows (tokens, layers, ...) of a block that is `shaped`, by the name of their tensor."""
        found = {}
        for side, x in (("k", block.k), ("v", block.v)):
            if isinstance(x, PackedRows):
                (packed,) = x.pieces
                found |= {f"{side}.{part}": getattr(packed, part).transpose(0, 1) for part in PARTS}
            else:
                rows = x.permute(2, 0, 1, 3)
                found[side] = rows if x.dtype in NAMES else rows.contiguous().view(torch.uint8)
        return found

    def join(self, rows: Mapping[str, torch.Tensor], side: str) -> torch.Tensor | PackedRows:
        """Keys or values of `split` rows: a view of them."""
        dtype = getattr(torch, self.dtype)
        if self.format is None:
            return rows[side].view(dtype).permute(1, 2, 0, 3)
        tensors = (rows[f"{side}.{name}"].transpose(0, 1) for name in PARTS)
        grid = self.format.grid(self.kv_heads * self.head_dim)
        return PackedRows(
            (Packed(*tensors, self.kv_heads, self.head_dim, grid),), dtype, rows[f"{side}.codes"].shape[0]
        )

    def _packs(self, x: torch.Tensor | PackedRows) -> bool:
        """Is it packed this way already, in one piece?"""
        grid = self.format.grid(self.kv_heads * self.head_dim)
        return isinstance(x, PackedRows) and [piece.grid for piece in x.pieces] == [grid]


def save_pages(folder: Path, agent: str, key: str, form: Form, blocks: Sequence[KVBlock]) -> None:
    """Write `shaped` blocks in place of the agent's file for ``key``; takes as much memory as the file.

    :raises CapacityError: the disk is full
    """
    total = sum(block.tokens for block in blocks)
    pages, index, start = -(-total // PAGE), {}, 0
    tensors: dict[str, torch.Tensor] = {}
    for block in blocks:
        stop = start + block.tokens
        for name, rows in form.split(block).items():
            if name not in tensors:
                tensors[name] = torch.zeros(pages, PAGE, *rows.shape[1:], dtype=rows.dtype)
            tensors[name].flatten(0, 1)[start:stop] = rows
        index[block.identity] = (start, stop, block.namespace, block.born)
        start = stop
    save_agent(folder, agent, key, total, tensors, {"form": asdict(form), "index": index})


class Pages:
    """The blocks of a mapped file. Nothing is read of them until they are asked for."""

    def __init__(self, file: BlockFile) -> None:
        self._file = file
        self.form = Form.from_json(file.header["form"])
        self._index: Mapping[str, Sequence[Any]] = file.header["index"]
        self._rows = {name: file.tensor(name).flatten(0, 1) for name in file.names}

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    def entries(self) -> list[Entry]:
        """In the order in which they were written."""
        width = sum(rows[:1].nbytes for rows in self._rows.values())
        return [
            Entry(identity, (stop - start) * width, namespace, born)
            for identity, (start, stop, namespace, born) in self._index.items()
        ]

    def read(self, identity: str) -> KVBlock:
        """A block, mapped; its pages are verified when they are first asked for.

        :raises CorruptError: one of them is damaged
        """
        start, stop, namespace, born = self._index[identity]
        self._file.verify(start // PAGE, -(-stop // PAGE))
        rows = {name: tensor[start:stop] for name, tensor in self._rows.items()}
        return KVBlock(identity, self.form.join(rows, "k"), self.form.join(rows, "v"), namespace, born)
