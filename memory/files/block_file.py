"""Block file: tensors in one memory-mapped safetensors file, divided into blocks with a checksum each.

Block i is row i of every tensor's first axis. Its checksum is CRC-32 over its number and its bytes: it detects all
damage within 32 successive bits, and misses one in 2^32 cases of other damage. It cannot detect forgery.
Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from keep_agent.errors import ConfigError, CorruptError, DataError
from memory.files.atomic import replace_file

FORMAT, SCHEMA = "keep-agent-blocks", 1
METADATA = "__metadata__"
PREFIX = b'{"__metadata__":{"seal":"'  # the seal, a checksum of the header's bytes after it, comes first
LENGTH, SEAL = 8, 64  # bytes of the JSON's length, which begins a file; hexadecimal digits of the seal
ALIGNMENT = 64  # bytes: the first tensor begins at a multiple of this number
LONGEST = 100_000_000  # most bytes of JSON that the safetensors library reads


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Place of a tensor: bytes ``begin:end`` after the header. ``dtype``: the name in safetensors, such as F32."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Content of a header. ``blocks`` and ``extra`` have the checksums of blocks and extra tensors, in hexadecimal."""

    spans: Mapping[str, TensorSpan]  # by the name of the tensor, in the order of the file
    header: Mapping[str, Any]  # the caller's own values
    blocks: Sequence[str]  # by number of the block
    extra: Mapping[str, str]  # by name of the tensor

    @property
    def data(self) -> int:
        """Total bytes of all tensors."""
        return max((span.end for span in self.spans.values()), default=0)

    def encode(self) -> bytes:
        """Encode the bytes in front of the tensors. Raises `ConfigError` for bad values, or above `LONGEST` bytes."""
        metadata = {
            "seal": "0" * SEAL,
            "format": FORMAT,
            "schema": str(SCHEMA),
            "sums": _json({"blocks": list(self.blocks), "extra": dict(self.extra)}),
            "header": _json(self.header),
        }
        spans = {
            name: {"dtype": span.dtype, "shape": span.shape, "data_offsets": (span.begin, span.end)}
            for name, span in self.spans.items()
        }
        raw = _json({METADATA: metadata} | spans).encode()
        rest = raw[len(PREFIX) + SEAL :]
        rest += b" " * (-(LENGTH + len(raw)) % ALIGNMENT)
        size = len(PREFIX) + SEAL + len(rest)
        if size > LONGEST:
            raise ConfigError(f"a header of {size} bytes is too long, at most {LONGEST}: shorten its texts")
        return size.to_bytes(LENGTH, "little") + PREFIX + _seal(rest) + rest

    @classmethod
    def decode(cls, buffer: Any, where: object) -> tuple[FileHeader, int]:
        """Return the decoded header of a file, and its length in bytes. ``buffer``: the file's bytes, or its mapping.

        Raises `CorruptError` for any changed bit, `DataError` for a newer schema; both name the file as ``where``.
        """
        size = int.from_bytes(buffer[:LENGTH], "little")
        raw = bytes(buffer[LENGTH : LENGTH + size])
        seal, rest = raw[len(PREFIX) : len(PREFIX) + SEAL], raw[len(PREFIX) + SEAL :]
        if len(raw) < size or not raw.startswith(PREFIX) or seal != _seal(rest):
            raise corrupt(where, "is not a block file, or its header is damaged")
        entries = json.loads(raw)
        metadata = entries.pop(METADATA)
        if metadata["format"] != FORMAT or int(metadata["schema"]) > SCHEMA:
            version = f"{metadata['format']}, schema {metadata['schema']}"
            raise DataError(f"{where} is {version}, but this version reads {FORMAT} up to {SCHEMA}: update keep-agent")
        sums = json.loads(metadata["sums"])
        spans = {name: TensorSpan(x["dtype"], tuple(x["shape"]), *x["data_offsets"]) for name, x in entries.items()}
        return cls(spans, json.loads(metadata["header"]), sums["blocks"], sums["extra"]), LENGTH + size


def corrupt(where: object, what: str) -> CorruptError:
    return CorruptError(f"{where} {what}: delete it, its agent's memory will be computed again")


def _json(value: Mapping[str, Any]) -> str:
    """Encode as ASCII, because UTF-8 cannot encode half a surrogate pair, which a prompt may contain."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError as error:
        raise ConfigError(f"a header has values that JSON cannot encode ({error}): use texts, numbers, lists") from None


def _seal(rest: bytes) -> bytes:
    """Return the SHA-256 of the bytes after the seal."""
    return hashlib.sha256(rest).hexdigest().encode()


DTYPES = {
    "U8": torch.uint8, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Tensors = Mapping[str, torch.Tensor]
NONE: Tensors = MappingProxyType({})


def write_blocks(path: Path, tensors: Tensors, header: Mapping[str, Any], extra: Tensors = NONE) -> None:
    """Replace ``path`` by a file of ``tensors``, ``(blocks, ...)`` each, and ``header``, which must be valid JSON.

    Small tensors of other shapes go into ``extra``. On return the new file is on the disk; until
    then the old one is valid. During the call tensors must not change: each is read twice, for its checksums and for
    the file. Raises `ConfigError` for tensors that do not fit together, `CapacityError` if the disk is full.
    """
    blocks, all_tensors = _blocks_of(tensors, extra), {**tensors, **extra}
    spans = _spans(all_tensors)
    flat = {name: all_tensors[name].detach().cpu().contiguous().reshape(-1) for name in spans}
    raw = {name: memoryview(x.view(torch.uint8).numpy()) for name, x in flat.items()}
    in_blocks = [raw[name] for name in spans if name in tensors]
    sums = [_checksum(number, in_blocks, blocks) for number in range(blocks)]
    extra_sums = {name: f"{zlib.crc32(raw[name]):08x}" for name in spans if name in extra}
    head = FileHeader(spans, header, sums, extra_sums).encode()
    with replace_file(path, private=True) as stream:
        stream.write(head)
        for content in raw.values():
            stream.write(content)


def open_blocks(path: Path) -> BlockFile:
    """Map a file and check its header and length; no tensor is read.

    Raises `CorruptError` if it is damaged, `DataError` if it is missing, cannot be read, or is of a newer version.
    """
    try:
        with path.open("rb") as stream:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise DataError(f"there is no {path}: write it first") from None
    except ValueError:  # an empty file cannot be mapped
        raise corrupt(path, "is empty") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): make it readable, or delete it") from error
    head, start = FileHeader.decode(memory, path)
    if len(memory) != start + head.data:
        raise corrupt(path, f"has {len(memory)} bytes instead of {start + head.data}")
    return BlockFile(path, head, memory, start)


class BlockFile:
    """A mapped file, made by `open_blocks`. Its content stays valid after the file is replaced or deleted.

    The mapping is private: a write into a tensor does not change the file. The mapping is closed with the last
    tensor that refers to it, and holds one file descriptor until then. Threads may share a `BlockFile`.
    """

    def __init__(self, path: Path, head: FileHeader, memory: mmap.mmap, start: int) -> None:
        self.path = path
        self.header = head.header  # as decoded from JSON
        self.blocks = len(head.blocks)
        self.names = tuple(sorted(name for name in head.spans if name not in head.extra))
        self.extras = tuple(sorted(head.extra))
        self._head, self._memory, self._start = head, memory, start
        self._verified: set[int | str] = set()

    @property
    def nbytes(self) -> int:
        return len(self._memory)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a mapped tensor, ``(blocks, ...)``. Only blocks that `verify` has checked may be trusted."""
        if name not in self.names:
            raise DataError(f"{self.path} holds no tensor {name!r}: choose one of {self.names}")
        return self._map(self._head.spans[name])

    def extra(self, name: str) -> torch.Tensor:
        """Map a tensor that is not in blocks; its checksum is compared at the first call."""
        if name not in self.extras:
            raise DataError(f"{self.path} holds no extra tensor {name!r}: choose one of {self.extras}")
        if name not in self._verified and f"{zlib.crc32(self._raw(name)):08x}" != self._head.extra[name]:
            raise corrupt(self.path, f"is damaged in its tensor {name!r}")
        self._verified.add(name)
        return self._map(self._head.spans[name])

    def verify(self, first: int = 0, last: int | None = None) -> None:
        """Read and check the blocks ``first:last`` that have not been checked yet (all by default).

        Raises `CorruptError` that names the first damaged block.
        """
        last = self.blocks if last is None else last
        if not 0 <= first <= last <= self.blocks:
            raise ConfigError(f"blocks {first}:{last} of {self.path} do not exist: it has {self.blocks}")
        in_blocks = [self._raw(name) for name in self._head.spans if name not in self._head.extra]
        for number in range(first, last):
            if number not in self._verified:
                if _checksum(number, in_blocks, self.blocks) != self._head.blocks[number]:
                    raise corrupt(self.path, f"is damaged in block {number} of {self.blocks}")
                self._verified.add(number)

    def _raw(self, name: str) -> memoryview:
        span = self._head.spans[name]
        return memoryview(self._memory)[self._start + span.begin : self._start + span.end]

    def _map(self, span: TensorSpan) -> torch.Tensor:
        dtype = DTYPES[span.dtype]
        if span.begin == span.end:
            return torch.empty(span.shape, dtype=dtype)
        count = (span.end - span.begin) // dtype.itemsize
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._start + span.begin)
        return flat.view(span.shape)


def _blocks_of(tensors: Tensors, extra: Tensors) -> int:
    """Count the blocks, of which all tensors must have the same number; 0 without tensors."""
    for name, tensor in (*tensors.items(), *extra.items()):
        if tensor.dtype not in NAMES:
            raise ConfigError(f"tensor {name!r} has dtype {tensor.dtype}: use one of {', '.join(map(str, NAMES))}")
    if METADATA in {*tensors, *extra} or tensors.keys() & extra.keys():
        raise ConfigError(f"a name occurs twice in {[*tensors, *extra]}, or one is {METADATA}: rename the tensor")
    counts = {tensor.shape[0] if tensor.ndim else None for tensor in tensors.values()}
    if len(counts) > 1 or None in counts:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise ConfigError(f"{shapes} differ in their first axis, the number of blocks: pad them, or pass them as extra")
    return counts.pop() if counts else 0


def _spans(tensors: Tensors) -> dict[str, TensorSpan]:
    """Place the tensors one after the other, wide numbers first, so that each is aligned to its width without gaps."""
    spans, begin = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        spans[name] = TensorSpan(NAMES[tensor.dtype], tuple(tensor.shape), begin, begin + tensor.nbytes)
        begin += tensor.nbytes
    return spans


def _checksum(number: int, tensors: Iterable[memoryview], blocks: int) -> str:
    """Compute a block's checksum over its number, which detects swapped blocks, and its bytes of every tensor."""
    value = zlib.crc32(number.to_bytes(8, "little"))
    for raw in tensors:
        step = len(raw) // blocks
        value = zlib.crc32(raw[number * step : (number + 1) * step], value)
    return f"{value:08x}"
