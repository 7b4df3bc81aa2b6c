"""Block file header: a safetensors header under a seal, so that every change is noticed.

The seal is SHA-256 over all the rest: names, shapes, places, checksums of the blocks, what the caller wrote, padding.
Format of safetensors: https://github.com/huggingface/safetensors (eight bytes of length, JSON, tensors).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import ConfigError, CorruptError, DataError

FORMAT, SCHEMA = "keep-agent-blocks", 1
METADATA = "__metadata__"
PREFIX = b'{"__metadata__":{"seal":"'  # in every version the seal comes first
LENGTH, SEAL = 8, 64  # bytes that give the length of the JSON, hexadecimal digits of the seal
ALIGNMENT = 64  # of the first tensor, in bytes
LONGEST = 100_000_000  # bytes of JSON that the safetensors library reads


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a tensor: bytes ``begin:end`` behind the header. ``dtype`` is safetensors' word for it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": self.shape, "data_offsets": (self.begin, self.end)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Span:
        return cls(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


@dataclass(frozen=True, slots=True)
class Head:
    """The content of a header. ``blocks`` and ``extra`` are checksums, eight hexadecimal digits each."""

    spans: Mapping[str, Span]  # by the name of the tensor, in the order of the file
    header: Mapping[str, Any]  # the caller's
    blocks: Sequence[str]
    extra: Mapping[str, str]

    @property
    def data(self) -> int:
        """Bytes of all tensors together."""
        return max((span.end for span in self.spans.values()), default=0)

    def encode(self) -> bytes:
        """Encode the bytes in front of the tensors; as many, whatever the checksums. Raises `ConfigError`."""
        metadata = {
            "seal": "0" * SEAL,
            "format": FORMAT,
            "schema": str(SCHEMA),
            "sums": _json({"blocks": list(self.blocks), "extra": dict(self.extra)}),
            "header": _json(self.header),
        }
        raw = _json({METADATA: metadata} | {name: span.to_json() for name, span in self.spans.items()}).encode()
        rest = raw[len(PREFIX) + SEAL :]
        rest += b" " * (-(LENGTH + len(raw)) % ALIGNMENT)
        size = len(PREFIX) + SEAL + len(rest)
        if size > LONGEST:
            raise ConfigError(f"a header of {size} bytes is too long, at most {LONGEST}: shorten its texts")
        return size.to_bytes(LENGTH, "little") + PREFIX + _seal(rest) + rest

    @classmethod
    def decode(cls, buffer: Any, where: object) -> tuple[Head, int]:
        """Decode the header of a file, and its length in bytes. ``buffer`` gives bytes for a slice.

        Raises `CorruptError` unless every bit is what was written, `DataError` for a newer schema; both name ``where``.
        """
        size = int.from_bytes(buffer[:LENGTH], "little")
        raw = bytes(buffer[LENGTH : LENGTH + size])
        seal, rest = raw[len(PREFIX) : len(PREFIX) + SEAL], raw[len(PREFIX) + SEAL :]
        if len(raw) < size or not raw.startswith(PREFIX) or seal != _seal(rest):
            raise corrupt(where, "is no block file, or its header is damaged")
        entries = json.loads(raw)
        metadata = entries.pop(METADATA)
        if metadata["format"] != FORMAT or int(metadata["schema"]) > SCHEMA:
            version = f"{metadata['format']}, schema {metadata['schema']}"
            raise DataError(f"{where} is {version}, but this version reads {FORMAT} up to {SCHEMA}: update keep-agent")
        sums = json.loads(metadata["sums"])
        spans = {name: Span.from_json(entry) for name, entry in entries.items()}
        return cls(spans, json.loads(metadata["header"]), sums["blocks"], sums["extra"]), LENGTH + size


def corrupt(where: object, what: str) -> CorruptError:
    """Make the error for a damaged file."""
    return CorruptError(f"{where} {what}: delete it, its agent's memory will be computed anew")


def _json(value: Mapping[str, Any]) -> str:
    """Encode in ASCII, which can hold half a surrogate pair of a prompt."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError as error:
        raise ConfigError(f"a header holds what JSON cannot ({error}): use texts, numbers, lists") from None


def _seal(rest: bytes) -> bytes:
    """Compute the seal of the bytes behind it; a wrong length before it would read other bytes."""
    return hashlib.sha256(rest).hexdigest().encode()
