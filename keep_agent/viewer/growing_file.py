"""Growing file: the checked lines of a file that others append to, each byte read once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keep_agent.files import reading
from memory.files.json_lines import Chain

REMEDY = "restore the file, or run it again"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands in its file, in bytes without its line break, its number from 1, and what came before it."""

    start: int
    size: int
    number: int
    before: Chain


@dataclass
class GrowingFile:
    """Yields lines as they become whole; what a writer has not ended yet waits for the next look."""

    path: Path
    count: int = 0  # of the whole lines
    _end: int = 0  # of the last one
    _chain: Chain = field(default_factory=Chain)
    _file: tuple[int, int] = (0, 0)  # device and inode that these bytes belong to

    def replaced(self) -> bool:
        """Is it another file now, or a shorter one? Then what was read before is void (`forget` it)."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return self._end > 0
        return self._end > 0 and ((status.st_dev, status.st_ino) != self._file or status.st_size < self._end)

    def forget(self, start: Chain | None = None) -> None:
        """Begin at the front again. ``start``: what the file's chain begins with."""
        self.count, self._end, self._chain = 0, 0, replace(start or Chain())

    def appended(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Lines that are whole and were not given yet. A missing file has none. Raises DataError for a damaged one."""
        if not self.path.exists():
            return
        with reading(self.path), self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            self._file = (status.st_dev, status.st_ino)
            stream.seek(self._end)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                place = Place(self._end, len(line) - 1, self.count + 1, replace(self._chain))
                value = self._chain.open(line[:-1], self._where(place), REMEDY)
                self._end += len(line)
                self.count += 1
                yield place, value

    def at(self, place: Place) -> dict[str, Any]:
        """What the line that stands there holds. Raises DataError if it has changed."""
        with reading(self.path), self.path.open("rb") as stream:
            stream.seek(place.start)
            return replace(place.before).open(stream.read(place.size), self._where(place), REMEDY)

    def _where(self, place: Place) -> str:
        return f"{self.path}:{place.number}"
