"""Journal of an agent's calls: one checked line each, on the disk before the call is acknowledged.

Lines are numbered without gaps, and a small file beside them names the last one that was acknowledged. So whatever is
changed or missing is noticed, at the end too; only a last line that was never acknowledged is cut off.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import read_bytes, reading, writing
from memory.disk.atomic import taken
from memory.disk.lines import Line, LineFile, read_lines

NUMBER = "entry"  # in a line; a call may have a number of its own
NUMBERED = re.compile(rb'\{"entry":(\d{1,15}),')
OLD = re.compile(rb"\d+ [0-9a-f]{8} \{")  # a line of version 0.2
END = ".end"  # of the name of the file with the last acknowledged number
REMEDY = "cut the file off before this line to go on without the calls from there, or put a saved memory in"


class Journal:
    """The calls since the memory was written; nobody else has the file open meanwhile.

    :param anew: what is there does not count, though it stays until `restart`; only its numbers go on
    :raises ConfigError: somebody else has it open
    :raises CorruptError: a line is damaged or missing
    """

    def __init__(self, path: Path, anew: bool = False) -> None:
        self._path, self._end = path, path.with_suffix(END)
        with writing(path):
            self._stream = path.open("ab")
        try:
            claim(self._stream, path.parent)
            lines = [] if anew else _read(path)
            self.calls = [(line.value.pop(NUMBER), line.value) for line in lines]
            self._file = LineFile(path, lines[-1] if lines else None)
            self._known = _highest(path, self._end) if anew else _acknowledged(self._end)
        except BaseException:
            self._stream.close()
            raise
        self.number = self._known if anew else self.calls[-1][0] if self.calls else 0  # of the last line

    def after(self, kept: int) -> list[dict[str, Any]]:
        """The calls behind number ``kept``. Raises CorruptError if one of them is missing."""
        due = [(number, call) for number, call in self.calls if number > kept]
        last = due[-1][0] if due else kept
        if due and due[0][0] != kept + 1:
            raise CorruptError(f"{self._path}: calls {kept + 1} to {due[0][0] - 1} are missing; put a saved memory in")
        if last < self._known:
            raise CorruptError(
                f"{self._path}: the last calls, {last + 1} to {self._known}, are missing; restore the file, or delete "
                f"{self._end} to go on without them"
            )
        self.number = last
        return [call for _, call in due]

    def append(self, call: Mapping[str, Any]) -> None:
        """Write a call, and wait until it is on the disk. After an error nothing of it is left."""
        self._file.append([{NUMBER: self.number + 1, **call}])
        self.number += 1
        self._acknowledge()

    def restart(self) -> None:
        """Begin anew with an empty file: what was in it is remembered elsewhere, by number. The numbers go on."""
        self._file.restart()
        self._acknowledge()

    @property
    def size(self) -> int:
        """Bytes of the lines that are there."""
        return self._file.size

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def close(self) -> None:
        self._stream.close()

    def _acknowledge(self) -> None:
        """Name the last line. It is not synced: after a power cut an earlier one may be named, never a later one."""
        number = f"{self.number:015d}".encode()
        with writing(self._end), self._end.open("r+b" if self._end.exists() else "wb", buffering=0) as stream:
            stream.write(b"%s %08x\n" % (number, zlib.crc32(number)))


def claim(stream: IO[bytes], folder: Path) -> None:
    """A file that nobody else holds until it is closed, or the process ends. Raises ConfigError naming ``folder``."""
    if taken(stream):
        stream.close()
        raise ConfigError(f"another server or agent is at work in {folder}; end it, or use another folder")


def _read(path: Path) -> list[Line]:
    """The lines, numbered without gaps."""
    with reading(path), path.open("rb") as stream:
        if OLD.match(stream.readline()):
            raise DataError(
                f"{path} was left behind by version 0.2; open and close the agent with that version, or delete the "
                "file to go on without the calls in it"
            )
    lines: list[Line] = []
    for line in read_lines(path, REMEDY):
        number = line.value.get(NUMBER)
        if type(number) is not int or (lines and number != lines[-1].value[NUMBER] + 1):
            raise CorruptError(f"{path}:{line.number} has number {number!r}, which does not follow; {REMEDY}")
        lines.append(line)
    return lines


def _acknowledged(end: Path) -> int:
    """The last number that was acknowledged; 0 where nothing says so. Raises CorruptError."""
    raw = read_bytes(end) if end.exists() else b""
    number, _, sum = raw.rstrip(b"\n").partition(b" ")
    if raw and (not number.isdigit() or sum != b"%08x" % zlib.crc32(number)):
        raise CorruptError(f"{end} is damaged; delete it to go on with the calls that are there")
    return int(number or 0)


def _highest(path: Path, end: Path) -> int:
    """The largest number of any line, be it damaged."""
    found = [int(number) for number in NUMBERED.findall(read_bytes(path))]
    with suppress(CorruptError):
        found.append(_acknowledged(end))
    return max(found, default=0)
