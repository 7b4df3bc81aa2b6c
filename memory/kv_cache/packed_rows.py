"""Packed rows: 4- or 8-bit keys or values, unpacked when indexed. Mapped rows: a file's rows, verified when indexed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch

from keep_agent.errors import ConfigError, CorruptError
from memory.kv_cache.quantization import Axis, Packed, PackFormat, pack

ALL = slice(None)


def parse_index(index: Any, tokens: int, what: str) -> tuple[Any, int, int]:
    """Split index ``[layers]`` or ``[layers, :, start:stop]`` into its parts; ``what`` names the rows in errors."""
    layers, heads, rows, *more = (*index, ALL, ALL)[:4] if isinstance(index, tuple) else (index, ALL, ALL)
    if heads != ALL or not isinstance(rows, slice) or rows.step not in (None, 1) or any(x != ALL for x in more):
        raise ConfigError(f"{what} cannot be indexed with {index!r}: use [layers] or [layers, :, start:stop]")
    start, stop, _ = rows.indices(tokens)
    return layers, start, max(start, stop)


class StoredRows:
    """Base class of a block's keys or values, (layers, kv_heads, tokens, head_dim), that are not a plain tensor."""

    __slots__ = ()
    kind: ClassVar[str]

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor:
        """Copy the layers ``index``; ``dim`` must be 0."""
        if dim != 0:
            raise ConfigError(f"{self.kind} rows cannot be selected along dim {dim}, only by layer (0): use rows[:]")
        return self[index]

    def _check_cut(self, dim: int) -> None:
        if dim != 2:
            raise ConfigError(f"{self.kind} rows cannot be cut along dim {dim}, only by token (2): use rows[:]")


@dataclass(frozen=True, slots=True)
class PackedRows(StoredRows):
    """Rows of ``dtype``, packed into 4 or 8 bits. Tokens of one group share a scale.

    The rows are number ``skip : skip + tokens`` of the concatenated ``pieces``, (layers, kv_heads, ..., head_dim) each.
    A piece has only whole groups, but the rows of a view may begin and end within a group.
    """

    kind: ClassVar[str] = "packed"
    pieces: tuple[Packed, ...]
    dtype: torch.dtype
    tokens: int
    skip: int = 0

    @classmethod
    def of(cls, x: torch.Tensor, format: PackFormat, along: Axis = "token") -> PackedRows:
        """Pack ``x`` (layers, kv_heads, tokens, head_dim). An incomplete last group of tokens is packed by token."""
        tokens = x.shape[2]
        whole = tokens - tokens % format.group if along == "channel" else 0
        pieces = [pack(x[:, :, :whole], format, along)] if whole else []
        if whole < tokens or not tokens:
            pieces.append(pack(x[:, :, whole:], format))
        return cls(tuple(pieces), x.dtype, tokens)

    @property
    def shape(self) -> tuple[int, ...]:
        layers, kv_heads, _, head_dim = self.pieces[0].shape
        return layers, kv_heads, self.tokens, head_dim

    @property
    def nbytes(self) -> int:
        """Packed bytes; a partly used group counts in full."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def device(self) -> torch.device:
        return self.pieces[0].codes.device

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Unpack ``[layers]`` or ``[layers, :, rows]``; ``rows`` is a slice without a step. Raises ConfigError."""
        layers, start, stop = parse_index(index, self.tokens, "packed rows")
        part = self.narrow(2, start, stop - start)
        unpacked = [piece[layers].unpack(self.dtype) for piece in part.pieces]
        whole = torch.cat(unpacked, -2) if len(unpacked) > 1 else unpacked[0]
        return whole.narrow(-2, part.skip, part.tokens)

    def narrow(self, dim: int, start: int, length: int) -> PackedRows:
        """View rows ``start : start + length``, still packed; ``dim`` must be 2."""
        self._check_cut(dim)
        if (start, length) == (0, self.tokens):
            return self
        first = self.skip + start
        parts = list(self._parts(first, first + length)) or [(0, self.pieces[0].part(0, 0))]
        return PackedRows(tuple(piece for _, piece in parts), self.dtype, length, parts[0][0])

    def layers(self, first: int, last: int) -> PackedRows:
        """View layers ``first:last``, still packed."""
        return replace(self, pieces=tuple(piece[first:last] for piece in self.pieces))

    def to(self, device: torch.device | str) -> PackedRows:
        """Move the packed bytes to ``device``."""
        return replace(self, pieces=tuple(piece.to(device) for piece in self.pieces))

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, Packed]]:
        """Cut rows ``first:last`` out of the pieces, in whole groups. Yields (rows of the part to skip, part)."""
        place = 0
        for piece in self.pieces:
            start, stop, span = max(first - place, 0), min(last - place, piece.tokens), piece.grid.span
            if start < stop:
                yield start % span, piece.part(start - start % span, stop + -stop % span)
            place += piece.tokens


class DamagedError(CorruptError):
    """Error for a stored block that changed on disk. The storage has deleted it; the next prompt computes a new one."""

    def __init__(self, identity: str, message: str) -> None:
        super().__init__(identity, message)  # both arguments, so that the error can be pickled
        self.identity = identity

    def __str__(self) -> str:
        return self.args[1]


class RowVerifier(Protocol):
    """Verifier of a block's rows in a file, shared by the block's keys and values. Any thread may call it."""

    def check(self, layers: Any, start: int = 0, stop: int | None = None) -> None:
        """Verify rows ``start:stop`` of ``layers`` (number, slice or list). Raises DamagedError if they changed."""
        ...

    def part(self, start: int, stop: int) -> RowVerifier:
        """Make the verifier of rows ``start:stop``, which are renumbered from 0."""
        ...

    @property
    def is_verified(self) -> bool:
        """Tell whether all rows of all layers have been verified."""
        ...


@dataclass(frozen=True, slots=True)
class MappedRows(StoredRows):
    """Rows in a mapped file. Only this class may read ``rows``, since it verifies them first."""

    kind: ClassVar[str] = "mapped"
    rows: torch.Tensor = field(repr=False)
    verifier: RowVerifier

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def __getitem__(self, index: Any) -> torch.Tensor:
        """View ``[layers]`` or ``[layers, :, rows]``; ``rows`` is a slice without a step.

        Raises ConfigError for any other index, DamagedError for rows that have changed.
        """
        self.verifier.check(*_layers_and_rows(index, self.shape[2]))
        return self.rows[index]

    def narrow(self, dim: int, start: int, length: int) -> MappedRows:
        """View rows ``start : start + length``, not verified yet; ``dim`` must be 2."""
        self._check_cut(dim)
        return MappedRows(self.rows.narrow(2, start, length), self.verifier.part(start, start + length))

    def to(self, device: torch.device | str) -> MappedRows | torch.Tensor:
        """Move to ``device``; rows that have to be copied are verified."""
        return self if self.device == torch.device(device) else self[:].to(device)

    def whole(self) -> torch.Tensor:
        """Verify all rows and view them."""
        return self[:]

    def copy(self) -> torch.Tensor:
        """Verify and copy all rows. In memory their order is layer, token, head, as in the file."""
        return self[:].transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class MappedPacked(PackedRows):
    """Packed rows in a mapped file: they are verified before they are read, moved or unpacked."""

    verifier: RowVerifier = field(kw_only=True)

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.verifier.check(*_layers_and_rows(index, self.tokens))
        return PackedRows.__getitem__(self, index)

    def narrow(self, dim: int, start: int, length: int) -> MappedPacked:
        """View rows ``start : start + length``, still packed, not verified yet; ``dim`` must be 2."""
        part = PackedRows.narrow(self, dim, start, length)
        verifier = self.verifier.part(start, start + length)
        return MappedPacked(part.pieces, part.dtype, part.tokens, part.skip, verifier=verifier)

    def layers(self, first: int, last: int) -> PackedRows:
        """Verify layers ``first:last`` and view them, still packed."""
        self.verifier.check(slice(first, last))
        return PackedRows(tuple(piece[first:last] for piece in self.pieces), self.dtype, self.tokens, self.skip)

    def to(self, device: torch.device | str) -> PackedRows:
        """Move to ``device``, still packed; rows that have to be copied are verified."""
        return self if self.device == torch.device(device) else self.whole().to(device)

    def whole(self) -> PackedRows:
        """Verify all rows and view them, still packed."""
        return self.layers(0, self.shape[0])

    def copy(self) -> PackedRows:
        """Verify all rows and copy them, still packed."""
        whole = self.whole()
        pieces = (piece.map(torch.clone) for piece in whole.pieces)
        return PackedRows(tuple(pieces), whole.dtype, whole.tokens, whole.skip)


Mapped = MappedRows | MappedPacked


def _layers_and_rows(index: Any, tokens: int) -> tuple[Any, int, int]:
    """Parse an index of mapped rows to layers (number, slice or list), start and stop."""
    layers, start, stop = parse_index(index, tokens, "mapped rows")
    if not isinstance(layers, int | slice | list | torch.Tensor):
        raise ConfigError(f"mapped rows cannot be indexed with {index!r}: use [layers] or [layers, :, start:stop]")
    return layers.tolist() if isinstance(layers, torch.Tensor) else layers, start, stop
