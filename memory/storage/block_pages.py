"""Block pages: a file of one model's KV blocks, with their rows layer by layer, in pages with a checksum each.

One layer of a KV block is one contiguous range of each tensor, so it can be read without the block's other layers.
With ``pages`` pages per layer, page ``p`` of layer ``l`` has number ``l * pages + p`` in a `BlockFile`. One checksum
covers the keys and values of a page. The header has each KV block's row range, namespace and creation time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keep_agent.errors import ConfigError, CorruptError
from memory.files.agent_files import save_agent
from memory.files.block_file import NAMES, BlockFile
from memory.kv_cache.block import Entry, KVBlock
from memory.kv_cache.packed_rows import DamagedError, Mapped, MappedPacked, MappedRows, PackedRows, RowVerifier
from memory.kv_cache.quantization import Grid, Packed, PackFormat

PAGE = 256  # rows of a layer under one checksum
PARTS = ("codes", "scale", "bias")


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Shape and format of all blocks of a file; ``dtype`` is a name such as "bfloat16"."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    format: PackFormat | None  # None: unpacked

    @classmethod
    def of(cls, block: KVBlock, format: PackFormat | None) -> PageFormat:
        layers, kv_heads, _, head_dim = block.k.shape
        return cls(layers, kv_heads, head_dim, str(block.k.dtype).removeprefix("torch."), format)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PageFormat:
        format = values["format"]
        return cls(**{**values, "format": None if format is None else PackFormat(**format)})

    def convert(self, block: KVBlock) -> KVBlock:
        """Return ``block`` in memory and in the file's format, so that its bytes can be written as they are.

        :raises ConfigError: the block is another model's, or is quantized although the file is not
        :raises DamagedError: the block is mapped from a file that is damaged
        """
        if PageFormat.of(block, self.format) != self:
            raise ConfigError(f"a block of {PageFormat.of(block, self.format)} does not fit into a file of {self}")
        if self.format is None and isinstance(block.k, PackedRows):
            raise ConfigError("a quantized block cannot be stored in an unquantized file: set the storage's `bits`")
        block = block.in_memory()
        packed = isinstance(block.k, PackedRows) and [piece.grid for piece in block.k.pieces] == [self.grid]
        if self.format is None or packed:
            return block
        k, v = (PackedRows.of(x[:], self.format) for x in (block.k, block.v))
        return replace(block, k=k, v=v)

    def split(self, block: KVBlock) -> dict[str, torch.Tensor]:
        """Return the tensors, by name, of a block that `convert` has returned; each is (layers, tokens, ...)."""
        tensors = {}
        for side, x in (("k", block.k), ("v", block.v)):
            x = x.whole() if isinstance(x, Mapped) else x
            if isinstance(x, PackedRows):
                (packed,) = x.pieces
                tensors |= {f"{side}.{part}": getattr(packed, part) for part in PARTS}
            else:
                rows = x.transpose(1, 2)
                tensors[side] = rows if x.dtype in NAMES else rows.contiguous().view(torch.uint8)
        return tensors

    def join(self, rows: Mapping[str, torch.Tensor], side: str, verifier: RowVerifier) -> MappedRows | MappedPacked:
        """Make keys (``side`` "k") or values ("v") that view the tensors ``rows``, which are named as by `split`."""
        dtype = getattr(torch, self.dtype)
        if self.format is None:
            return MappedRows(rows[side].view(dtype).transpose(1, 2), verifier)
        codes, scale, bias = (rows[f"{side}.{name}"] for name in PARTS)
        packed = Packed(codes, scale, bias, self.kv_heads, self.head_dim, self.grid)
        return MappedPacked((packed,), dtype, packed.tokens, verifier=verifier)

    @property
    def grid(self) -> Grid:
        """Division of a token's numbers into quantization groups; packed files only."""
        return self.format.grid(self.kv_heads * self.head_dim)


def save_pages(folder: Path, agent: str, key: str, page_format: PageFormat, blocks: Sequence[KVBlock]) -> None:
    """Write ``blocks``, which `convert` returned, as the agent's new file for ``key``. Raises CapacityError."""
    total = sum(block.tokens for block in blocks)
    pages, index, start = -(-total // PAGE), {}, 0
    tensors: dict[str, torch.Tensor] = {}
    for block in blocks:
        stop = start + block.tokens
        for name, rows in page_format.split(block).items():
            if name not in tensors:
                tensors[name] = torch.zeros(page_format.layers, pages * PAGE, *rows.shape[2:], dtype=rows.dtype)
            tensors[name][:, start:stop] = rows
        index[block.identity] = (start, stop, block.namespace, block.created)
        start = stop
    paged = {name: x.view(page_format.layers * pages, PAGE, *x.shape[2:]) for name, x in tensors.items()}
    save_agent(folder, agent, key, total, paged, {"form": asdict(page_format), "index": index})


class Pages:
    """Blocks of a mapped file, read and verified when they are sliced; ``report`` is called for each damaged block."""

    def __init__(self, file: BlockFile, report: Callable[[Pages, str, CorruptError], None]) -> None:
        self._file, self.report = file, report
        self.page_format = PageFormat.from_json(file.header["form"])
        self._index: Mapping[str, Sequence[Any]] = file.header["index"]
        layers, self._pages = self.page_format.layers, file.blocks // self.page_format.layers
        paged = {name: file.tensor(name) for name in file.names}
        self._rows = {name: x.view(layers, self._pages * PAGE, *x.shape[2:]) for name, x in paged.items()}
        self._verified = np.zeros((layers, self._pages), bool)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    def entries(self) -> list[Entry]:
        """List the blocks in the order in which they were written."""
        width = sum(rows[:, :1].nbytes for rows in self._rows.values())
        return [
            Entry(identity, (stop - start) * width, namespace, created)
            for identity, (start, stop, namespace, created) in self._index.items()
        ]

    def verifier(self, identity: str) -> PageVerifier:
        """Make the verifier of a block, which reports damage."""
        return PageVerifier(self, identity, *self._index[identity][:2])

    def read(self, identity: str) -> KVBlock:
        """Map a block; a page is verified when rows in it are first sliced."""
        start, stop, namespace, created = self._index[identity]
        rows, verifier = {name: x[:, start:stop] for name, x in self._rows.items()}, self.verifier(identity)
        k, v = (self.page_format.join(rows, side, verifier) for side in ("k", "v"))
        return KVBlock(identity, k, v, namespace, created)

    def are_verified(self, layers: Any, start: int, stop: int) -> bool:
        """Tell whether these rows of the file have been verified, for a number, slice or list of ``layers``."""
        return start >= stop or bool(self._verified[layers, start // PAGE : -(-stop // PAGE)].all())

    def verify(self, layers: Any, start: int, stop: int) -> None:
        """Verify rows ``start:stop`` of the file. Raises `CorruptError` at the first damaged page."""
        if self.are_verified(layers, start, stop):
            return
        first, last = start // PAGE, -(-stop // PAGE)
        for layer in np.atleast_1d(np.arange(self.page_format.layers)[layers]).tolist():
            self._file.verify(layer * self._pages + first, layer * self._pages + last)
            self._verified[layer, first:last] = True


@dataclass(frozen=True, slots=True)
class PageVerifier:
    """Verifier of rows ``start:stop`` of a file, which are all or some of the rows of the block ``identity``."""

    pages: Pages = field(repr=False)
    identity: str
    start: int
    stop: int

    def check(self, layers: Any, start: int = 0, stop: int | None = None) -> None:
        """Verify rows ``start:stop`` of this block or part, in ``layers``. Report damage, then raise `DamagedError`."""
        try:
            self.pages.verify(layers, self.start + start, self.stop if stop is None else self.start + stop)
        except CorruptError as error:
            self.pages.report(self.pages, self.identity, error)
            raise DamagedError(self.identity, f"block {self.identity:.12} is lost: {error}") from error

    def part(self, start: int, stop: int) -> PageVerifier:
        """Make the verifier of rows ``start:stop`` of this block or part."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    @property
    def is_verified(self) -> bool:
        return self.pages.are_verified(slice(None), self.start, self.stop)
