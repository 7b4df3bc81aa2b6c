"""End mark of a file of lines with checksums: a small file beside it with the number of lines that must exist.

    5b1fd0a4 000000003 9ad0c2e7     start of the chain, number of acknowledged lines, checksum of the last of them

The mark detects lines missing at the end, and a file or mark of another owner, whose chain of checksums starts
differently (`json_lines.Chain`). While one chain replaces another (`MarkedFile.prepare_restart`) there are two marks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep_agent.errors import CorruptError, DataError
from keep_agent.files import read_bytes, writing
from memory.files.atomic import write_atomic
from memory.files.json_lines import Chain, Line, LineFile, read_lines, write_all

SUFFIX = ".end"  # replaces the file's own suffix
MARK = re.compile(rb"([0-9a-f]{8}) (\d{9}) ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a file whose chain begins with ``start``: line number ``count`` must exist, with this ``checksum``."""

    start: int
    count: int
    checksum: int

    def check_count(self, count: int, path: Path, remedy: str) -> None:
        """Raise CorruptError if ``count`` lines are fewer than the marked number."""
        if count < self.count:
            raise CorruptError(
                f"{path} lacks its last lines, {count + 1} to {self.count}, as {end_of(path).name} says; {remedy}"
            )

    def check(self, lines: list[Line], path: Path, remedy: str) -> None:
        """Raise CorruptError if lines are missing or different."""
        self.check_count(len(lines), path, remedy)
        if self.checksum != (lines[self.count - 1].chain.sum if self.count else self.start):
            raise CorruptError(f"{end_of(path)} is damaged (the checksum of line {self.count} differs); {remedy}")

    def __bytes__(self) -> bytes:
        return b"%08x %09d %08x\n" % (self.start, self.count, self.checksum)


class MarkedFile(LineFile):
    """File of checked lines with an end mark, opened at its end to append to."""

    def __init__(self, path: Path, last: Line | None = None, start: Chain | None = None) -> None:
        super().__init__(path, last, start)
        self._marks_to_keep: tuple[Mark, ...] = tuple(m for m in read_marks(path) if m.start != self.start.sum)

    @classmethod
    def begin(cls, path: Path, start: Chain) -> MarkedFile:
        """Write a mark for 0 lines, which survives a power cut; the first `append` makes the file of lines."""
        write_atomic(end_of(path), bytes(Mark(start.sum, 0, start.sum)))
        return cls(path, None, start)

    @property
    def mark(self) -> Mark:
        """Mark of the lines so far."""
        return Mark(self.start.sum, self.count, self.checksum)

    def append(self, values: Iterable[Mapping[str, Any]], synced: bool = True) -> None:
        super().append(values, synced)
        self._write_mark()

    def prepare_restart(self, start: Chain) -> None:
        """Prepare to `restart` with another start: until then a reader accepts the old and the new start."""
        marks = tuple(dict.fromkeys((self.mark, *self._marks_to_keep, Mark(start.sum, 0, start.sum))))
        write_atomic(end_of(self.path), b"".join(map(bytes, marks)))
        self._marks_to_keep = marks[1:]

    def restart(self, start: Chain) -> None:
        super().restart(start)
        self._write_mark()

    def _write_mark(self) -> None:
        """Mark the last line without syncing: after a power cut an earlier line may be marked, never a later one."""
        end = end_of(self.path)
        with writing(end), end.open("r+b", buffering=0) as stream:
            os.ftruncate(stream.fileno(), write_all(stream.fileno(), bytes(self.mark)))
        self._marks_to_keep = ()


def end_of(path: Path) -> Path:
    """Return the file with the end mark of ``path``."""
    return path.with_suffix(SUFFIX)


def read_marks(path: Path) -> list[Mark]:
    """Read the marks of a file; [] if the file with the marks is missing or has another format."""
    end = end_of(path)
    raw = read_bytes(end) if end.exists() else b""
    marks = [Mark(int(m[1], 16), int(m[2]), int(m[3], 16)) for m in MARK.finditer(raw)]
    return marks if b"".join(map(bytes, marks)) == raw else []


def find_mark(path: Path, start: Chain, owner: str, remedy: str) -> Mark:
    """Read the mark of ``owner``'s file, whose chain begins with ``start``. Raises CorruptError if there is none."""
    mark = next((mark for mark in read_marks(path) if mark.start == start.sum), None)
    if mark is None:
        state = "is missing" if not end_of(path).exists() else f"is damaged, or does not belong to {owner}"
        raise CorruptError(f"{end_of(path)} {state}; {remedy}")
    return mark


def read_marked(path: Path, start: Chain, owner: str, remedy: str) -> list[Line]:
    """Read the lines of a file whose chain begins with ``start``; [] while it still has lines of an earlier chain.

    Raises CorruptError as `find_mark` does, and for a damaged line.
    """
    mark = find_mark(path, start, owner, remedy)  # read before the lines, because lines are written before their mark
    before = any(_begins_with(path, Chain(m.start, True)) for m in read_marks(path) if m.start != start.sum)
    lines = [] if before else list(read_lines(path, remedy, start))
    mark.check(lines, path, remedy)
    return lines


def _begins_with(path: Path, start: Chain) -> bool:
    """Tell whether the first line of a file continues the chain ``start``."""
    try:
        return next(read_lines(path, start=start), None) is not None
    except DataError:
        return False
