"""Journal of an agent's calls: one checked line each, on the disk before the call is acknowledged.

It belongs to one agent and continues one state of its memory file: the chain of checksums begins with both. The mark
beside it tells how many calls were acknowledged. So whatever is changed, missing or exchanged is noticed, at the end
too; only a last line that was never acknowledged is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from keep_agent.errors import ConfigError, DataError
from keep_agent.files import reading, writing
from memory.files.atomic import taken
from memory.files.end_mark import MarkedFile, end_of, read_marked
from memory.files.json_lines import Chain

OLD = re.compile(rb"\d+ [0-9a-f]{8} \{")  # a line of version 0.2
REMEDY = "restore all files of the agent from one copy, or put a saved memory in, such as its memory.json"


class Journal:
    """The calls since the memory was written; nobody else has the file open meanwhile.

    :raises ConfigError: somebody else has it open
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, MarkedFile(path)
        with writing(path):
            self._stream = path.open("ab")
        claim(self._stream, path.parent)

    def read(self, start: Chain, owner: str, new: bool) -> list[dict[str, Any]]:
        """The calls behind the memory, named ``owner``, that ``start`` stands for.

        :param new: there may be no journal yet
        :raises CorruptError: a line or the mark is damaged, missing, or belongs to something else
        """
        self._check_version()
        if new and not end_of(self._path).exists() and not self._path.stat().st_size:
            self._file = MarkedFile.begin(self._path, start)
            return []
        lines = read_marked(self._path, start, owner, REMEDY)
        self._file = MarkedFile(self._path, lines[-1] if lines else None, start)
        return [line.value for line in lines]

    def append(self, call: Mapping[str, Any]) -> None:
        """Write a call, and wait until it is on the disk. After an error nothing of it is left."""
        self._file.append([call])

    def announce(self, start: Chain) -> None:
        """Prepare for a memory that ``start`` stands for: it will hold all calls so far. Then write it, and `restart`.

        Killed in between, the journal belongs to either memory.
        """
        self._file.announce(start)

    def restart(self, start: Chain) -> None:
        """Begin anew with an empty file, behind the memory that was announced."""
        self._file.restart(start)

    @property
    def count(self) -> int:
        """Calls that are there."""
        return self._file.count

    @property
    def size(self) -> int:
        """Bytes of the lines that are there."""
        return self._file.size

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def close(self) -> None:
        self._stream.close()

    def _check_version(self) -> None:
        """Raises DataError for a journal that version 0.2 wrote."""
        with reading(self._path), self._path.open("rb") as stream:
            if OLD.match(stream.readline()):
                raise DataError(
                    f"{self._path} was left behind by version 0.2; open and close the agent with that version, or "
                    "delete the file to go on without the calls in it"
                )


def claim(stream: IO[bytes], folder: Path) -> None:
    """A file that nobody else holds until it is closed, or the process ends. Raises ConfigError naming ``folder``."""
    if taken(stream):
        stream.close()
        raise ConfigError(f"another server or agent is at work in {folder}; end it, or use another folder")
