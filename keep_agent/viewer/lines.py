"""The whole lines of a file that others append to: each byte is read once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands in its file, in bytes without its line break, and its number from 1."""

    start: int
    size: int
    number: int


@dataclass
class GrowingFile:
    """Yields lines as they become whole; what a writer has not ended yet waits for the next look."""

    path: Path
    _end: int = 0  # of the last whole line
    _count: int = 0
    _file: tuple[int, int] = (0, 0)  # device and inode that these bytes belong to

    def replaced(self) -> bool:
        """Is it another file now, or a shorter one? Then what was read before is void (`forget` it)."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return self._end > 0
        return self._end > 0 and ((status.st_dev, status.st_ino) != self._file or status.st_size < self._end)

    def forget(self) -> None:
        """Begin at the front again."""
        self._end, self._count = 0, 0

    def appended(self) -> Iterator[tuple[Place, bytes]]:
        """Lines that are whole and were not given yet. A missing file has none."""
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            return
        with stream:
            status = os.fstat(stream.fileno())
            self._file = (status.st_dev, status.st_ino)
            stream.seek(self._end)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                place = Place(self._end, len(line) - 1, self._count + 1)
                self._end += len(line)
                self._count += 1
                yield place, line[:-1]

    def at(self, place: Place) -> bytes:
        """The line that stands there."""
        with self.path.open("rb") as stream:
            stream.seek(place.start)
            return stream.read(place.size)
