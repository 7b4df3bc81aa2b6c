"""Files whose writers take their time between one tensor and the next, as a slow disk has them do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from memory.files.atomic import replacing


@dataclass(frozen=True)
class Pausing:
    """A stream that pauses behind every write: what is written is on its way, its checksum is not made yet."""

    stream: BinaryIO
    pause: Callable[[], object]

    def write(self, raw: bytes) -> None:
        self.stream.write(raw)
        self.pause()

    def seek(self, place: int) -> None:
        self.stream.seek(place)


def pausing(pause: Callable[[], object]) -> Callable[..., AbstractContextManager[Pausing]]:
    """What takes the place of ``memory.files.block_file.replacing``."""

    @contextmanager
    def slowly(path: Path, private: bool = False) -> Iterator[Pausing]:
        with replacing(path, private) as stream:
            yield Pausing(stream, pause)

    return slowly
