"""A file that calls are appended to, one line each, on the disk before they are acknowledged."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from keep_agent.errors import CapacityError, ConfigError, CorruptError
from memory.disk.atomic import FULL, sync, taken

DIGITS = 16  # a longer number is none of ours


class Journal:
    """Lines of a running number, a checksum and a call. A torn last line was never acknowledged, and is cut off.

    :param anew: what is there does not count, though it stays until `restart`; only its numbers go on
    :raises ConfigError: somebody else has it open
    :raises CorruptError: a line before the last is damaged
    """

    def __init__(self, path: Path, anew: bool = False) -> None:
        self._path = path
        new = not path.exists()
        self._stream = path.open("ab", buffering=0)
        try:
            claim(self._stream, path.parent)
            self.calls, whole = ([], self.size) if anew else _read(path)
            self._stream.truncate(whole)
            os.fsync(self._stream.fileno())
            if new:
                sync(path.parent)
        except BaseException:
            self._stream.close()
            raise
        self.number = _highest(path) if anew else self.calls[-1][0] if self.calls else 0  # of the last line

    def append(self, call: Mapping[str, Any]) -> None:
        """Write a call, and wait until it is on the disk. If that fails, nothing of it is left."""
        body = json.dumps(call, separators=(",", ":"), ensure_ascii=False)
        line = f"{self.number + 1} {zlib.crc32(body.encode()):08x} {body}\n".encode()
        end = self.size
        try:
            if self._stream.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())
        except OSError as error:
            self._stream.truncate(end)
            if error.errno in FULL:
                raise CapacityError(f"no room for {self._path} ({error.strerror}): free some") from error
            raise
        self.number += 1

    def restart(self) -> None:
        """Begin anew with an empty file: what was in it is remembered elsewhere, by number. The numbers go on."""
        self._stream.truncate(0)

    @property
    def size(self) -> int:
        """Bytes of the lines that are there."""
        return os.fstat(self._stream.fileno()).st_size

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def close(self) -> None:
        self._stream.close()


def claim(stream: IO[bytes], folder: Path) -> None:
    """A file that nobody else holds until it is closed, or the process ends. Raises ConfigError naming ``folder``."""
    if taken(stream):
        stream.close()
        raise ConfigError(f"another server or agent is at work in {folder}; end it, or use another folder")


def _read(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """The calls with their numbers, and the bytes that hold them."""
    raw = path.read_bytes() if path.exists() else b""
    whole = raw.rfind(b"\n") + 1
    lines = raw[:whole].splitlines(keepends=True)
    calls, size = [], 0
    for place, line in enumerate(lines, 1):
        found = _call(line)
        if found is None and place == len(lines):
            break  # torn where a newline happened to be
        if found is None:
            raise CorruptError(f"{path}:{place} is damaged: its checksum is another; cut the file off before this line")
        calls.append(found)
        size += len(line)
    return calls, size


def _highest(path: Path) -> int:
    """The largest number of any line, be it damaged."""
    numbers = (line.split(b" ", 1)[0] for line in path.read_bytes().splitlines())
    return max((int(number) for number in numbers if number.isdigit() and len(number) < DIGITS), default=0)


def _call(line: bytes) -> tuple[int, dict[str, Any]] | None:
    try:
        number, sum, body = line.rstrip(b"\n").split(b" ", 2)
        return (int(number), json.loads(body)) if int(sum, 16) == zlib.crc32(body) else None
    except ValueError:
        return None
