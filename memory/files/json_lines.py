"""Checked JSON lines: objects in a file that is appended to, each with a checksum of itself and all lines before it.

The last key of a line, ``sum``, is CRC-32 over the bytes before that key in this line and in all earlier ones. Lines
are plain JSON. The sums detect changed bits and missing, repeated or moved lines, but not forgery. A last line without
a line break is left out, because its writer was killed before the line was acknowledged.

The chain of sums may begin with a text that names the file's owner (`Chain.for_owner`): then all lines have sums, and
lines of other files raise errors. `memory.files.end_mark` detects lines that are missing at the end.

Files of older versions, whose first line has no sum, are read and extended without sums.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keep_agent.errors import CorruptError, DataError
from keep_agent.files import parsed, reading, writing
from memory.files.atomic import sync

KEY, KIND = b',"sum":"', b"crc32:"  # either shows that there is a checksum: one flipped bit cannot hide both
TAIL = len(b',"sum":"crc32:00000000"}')
SUM = re.compile(re.escape(KEY + KIND) + rb'([0-9a-f]{8})"\}')
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Chain:
    """Checksum of the lines so far. ``sealed``: whether the file's lines have sums; None before the first line."""

    sum: int = 0
    sealed: bool | None = None

    @classmethod
    def for_owner(cls, text: bytes) -> Chain:
        """Start the chain of a file whose owner ``text`` identifies; all lines of such a file have a sum."""
        return cls(zlib.crc32(text), True)

    def seal(self, value: Mapping[str, Any]) -> bytes:
        """Encode the next line of a file, with its line break. ``value`` must not be empty."""
        body = encode_json(value)[:-1]
        if self.sealed is False:
            return body + b"}\n"
        self.sealed, self.sum = True, zlib.crc32(body, self.sum)
        return body + self._tail() + b"\n"

    def open(self, line: bytes, where: str, remedy: str) -> dict[str, Any]:
        """Decode the next line of a file. Raises CorruptError, or DataError in a file without sums."""
        body, tail = line[:-TAIL], line[-TAIL:]
        has_sum = KEY in tail or KIND in tail
        if self.sealed is None:
            self.sealed = has_sum
        self.sum = zlib.crc32(body, self.sum)
        if has_sum != self.sealed or (has_sum and tail != self._tail()):
            raise CorruptError(
                f"{where} is damaged, a line before it is missing, or the file belongs elsewhere (its checksum does "
                f"not match); {remedy}"
            )
        value = parsed(line, where, remedy)
        if not isinstance(value, dict):
            raise DataError(f"{where} is not a JSON object; {remedy}")
        value.pop("sum", None)
        return value

    def _tail(self) -> bytes:
        return b'%s%s%08x"}' % (KEY, KIND, self.sum)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a file: ``number`` from 1, ``end`` in bytes from the file's start, ``chain`` the checksum state there."""

    number: int
    end: int
    value: dict[str, Any]
    chain: Chain


def read_lines(path: Path, remedy: str = "restore the file", start: Chain | None = None) -> Iterator[Line]:
    """Read a file's whole lines, if it exists; ``start`` begins its chain. Raises CorruptError or DataError."""
    if not path.exists():
        return
    chain, end = replace(start or Chain()), 0
    with reading(path), path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            if not raw.endswith(b"\n"):
                log.warning("%s:%d is cut off in the middle: its writer was killed; it is left out", path, number)
                return
            end += len(raw)
            value = chain.open(raw[:-1], f"{path}:{number}", remedy)
            yield Line(number, end, value, replace(chain))


class LineFile:
    """File of checked lines, opened at its end to append to. The next append cuts off everything after ``last``.

    :param last: the last line that stays; None: no line stays
    :param start: start of the file's chain; None: that of a file without an owner
    """

    def __init__(self, path: Path, last: Line | None = None, start: Chain | None = None) -> None:
        self.path, self.start = path, start or Chain()
        self.count, self.size, self._chain = 0, 0, replace(self.start)
        if last is not None:
            self.count, self.size, self._chain = last.number, last.end, replace(last.chain)

    @property
    def checksum(self) -> int:
        """Checksum of all lines so far, if the file has checksums."""
        return self._chain.sum

    @classmethod
    def at_end(cls, path: Path, start: Chain) -> LineFile:
        """Open a file after its last whole line; no line is checked. Raises CorruptError for a malformed last sum."""
        number, end, last = 0, 0, b""
        with reading(path), path.open("rb") as stream:
            for raw in stream:
                if raw.endswith(b"\n"):
                    number, end, last = number + 1, end + len(raw), raw[-1 - TAIL : -1]
        return cls(path, Line(number, end, {}, Chain(*_read_sum(last, path))) if number else None, start)

    def append(self, values: Iterable[Mapping[str, Any]], synced: bool = True) -> None:
        """Write lines and wait until they are on the disk; ``synced=False``: until they are in the system's cache.

        After an error none of these lines is in the file. Raises CapacityError or StorageError.
        """
        chain, new = replace(self._chain), not self.path.exists()
        lines = [chain.seal(value) for value in values]
        if not lines:
            return
        with writing(self.path), self.path.open("ab", buffering=0) as stream:
            self._cut(stream.fileno())
            try:
                size = write_all(stream.fileno(), b"".join(lines))
                if synced:
                    os.fsync(stream.fileno())
                    if new:
                        sync(self.path.parent)
            except OSError:
                os.ftruncate(stream.fileno(), self.size)
                raise
        self.count, self.size, self._chain = self.count + len(lines), self.size + size, chain

    def restart(self, start: Chain) -> None:
        """Replace the file by an empty one whose chain begins with ``start``; it survives a power cut."""
        self.start = start
        self.count, self.size, self._chain = 0, 0, replace(start)
        with writing(self.path), self.path.open("r+b", buffering=0) as stream:
            os.ftruncate(stream.fileno(), 0)
            os.fsync(stream.fileno())

    def cut(self) -> int:
        """Cut off everything after the last line without appending; returns the number of bytes cut off."""
        if not self.path.exists():
            return 0
        with writing(self.path), self.path.open("ab", buffering=0) as stream:
            return self._cut(stream.fileno())

    def _cut(self, file: int) -> int:
        over = os.fstat(file).st_size - self.size
        if over < 0:
            raise CorruptError(f"{self.path} is shorter than the lines written to it; restore it")
        if over:
            os.ftruncate(file, self.size)
        return over


def _read_sum(tail: bytes, path: Path) -> tuple[int, bool]:
    """Parse the checksum at the end of a line. Returns the checksum, and whether the line has one."""
    if KEY not in tail and KIND not in tail:
        return 0, False
    if match := SUM.fullmatch(tail):
        return int(match[1], 16), True
    raise CorruptError(f"{path} is damaged in its last line; restore it")


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Encode JSON without blanks. Raises DataError for half a surrogate pair, which no file can contain."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.start + 1]
        raise DataError(f"{half!r} is half of a surrogate pair, not a character: leave it out") from None


def write_all(file: int, raw: bytes) -> int:
    """Write all bytes to an open file, or raise the OSError that stops it; returns the number of bytes."""
    rest = memoryview(raw)
    while rest:
        rest = rest[os.write(file, rest) :]
    return len(raw)
