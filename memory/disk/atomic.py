"""Files that appear whole or not at all, whenever their writer is killed. For POSIX systems.

A writer locks its temporary file as long as it lives, so what a killed one left behind is told from one at work.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from keep_agent.errors import CapacityError

SUFFIX = ".partial"
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes take the place of ``path`` at the end of the block, and survive a power cut from then on.

    Until then, and after any error, the old file is what it was. Of several writers the last to end wins; nothing
    mixes. Only the user may read the file. Raises `CapacityError` if the disk is full.
    """
    _make(path.parent)
    temporary, stream = _claim(path)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL:
            raise CapacityError(f"no room for {path} ({error.strerror}): free some, or lower the budget") from error
        raise
    sync(path.parent)


def clean(folder: Path) -> list[Path]:
    """Remove the temporary files of killed writers, and return their names; those being written stay."""
    return [file for file in sorted(folder.glob(f".*{SUFFIX}")) if _abandoned(file)]


def sync(folder: Path) -> None:
    """Make new, renamed and removed names in a folder survive a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _make(folder: Path) -> None:
    """The folder and those above it; a new one's name survives a power cut as well."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def _claim(path: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file beside ``path`` and its stream, locked."""
    while True:
        number, name = tempfile.mkstemp(SUFFIX, f".{path.name}.", path.parent)
        stream = os.fdopen(number, "wb")
        fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(number).st_nlink:
            return Path(name), stream
        stream.close()  # `clean` came between creating and locking, and took it for abandoned


def _abandoned(file: Path) -> bool:
    """Remove a temporary file unless its writer holds the lock."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except (BlockingIOError, FileNotFoundError):  # at work, or done meanwhile
        return False
    return True
