"""Atomic files and folders: they appear whole or not at all, whenever their writer is killed. For POSIX systems.

A writer locks its temporary file as long as it lives, so what a killed one left behind is told from one at work. Where
the file system has no locks, nothing is: what is left behind stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from keep_agent.errors import ConfigError, StorageError
from keep_agent.files import writing

SUFFIX = ".partial"


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a stream whose bytes take the place of ``path`` at the end of the block, and survive a power cut after that.

    Until then, and after any error, the old file is what it was. Of several writers the last to end wins; nothing
    mixes. Folders that are missing are made. ``private``: only the user may read the file, else whom the umask lets.
    A link is replaced, not what it leads to; a device, pipe or socket never is. Raises `CapacityError` if the disk is
    full, `StorageError` where nothing can be written.
    """
    with writing(path, "free some, or lower the budget"):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise StorageError(f"{path} is a device, pipe or socket, and stays; name a file")
        _make(path.parent)
        temporary, stream = _claim(path, 0o600 if private else 0o666)
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing, as `replacing` does."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Make a folder that takes its name at the end of the block, with all that was put into it, or not at all.

    It then survives a power cut. All is written before the first file is synced: the disk takes them together. Where
    there is an empty folder it takes its place; one with files in it raises OSError, and stays.
    """
    _make(folder.parent)
    temporary = _beside(folder)
    try:
        temporary.mkdir()
        yield temporary
        for path in (*sorted(temporary.rglob("*")), temporary):
            sync(path)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(folder.parent)


def link_atomic(path: Path, target: Path) -> None:
    """Make ``path`` a symbolic link to ``target``, in the place of a file or link that is there, at once."""
    temporary = _beside(path)
    try:
        temporary.symlink_to(target)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def clean(folder: Path) -> list[Path]:
    """Remove the temporary files of killed writers, and return their names; those being written stay."""
    return [file for file in sorted(folder.glob(f".*{SUFFIX}")) if _abandoned(file)]


def sync(path: Path) -> None:
    """Make new, renamed and removed names in a folder, or what is in a file, survive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def taken(file: BinaryIO | int) -> bool:
    """Whether another process has locked an open file or folder; if not, lock it until it is closed or this one ends.

    Where the file system has no locks, nothing is locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, made if it is missing, against other processes that do the same; it is removed if it ends empty.

    Raises `ConfigError` while another does, `StorageError` where no folder can be made.
    """
    with writing(folder):
        _make(folder)
    with ExitStack() as stack:
        number = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, number)
        if taken(number):
            raise ConfigError(f"another process is at work in {folder}; wait for it, or stop it")
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()


def _make(folder: Path) -> None:
    """Make the folder and those above it; a new one's name survives a power cut as well."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def _beside(path: Path) -> Path:
    """Name a hidden file in the same folder, for what will be ``path``."""
    return path.with_name(f".{path.name}.{token_hex(4)}{SUFFIX}")


def _claim(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Make a temporary file beside ``path``, and open its stream, locked."""
    while True:
        temporary = _beside(path)
        try:
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            continue
        stream = os.fdopen(number, "wb")
        with suppress(OSError):  # no locks here
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(number).st_nlink:
            return temporary, stream
        stream.close()  # `clean` came between creating and locking, and took it for abandoned


def _abandoned(file: Path) -> bool:
    """Remove a temporary file unless its writer holds the lock, or may do so."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except OSError:  # at work, done meanwhile, another user's, or nobody can tell
        return False
    return True
