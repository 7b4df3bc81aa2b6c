"""Atomic files and folders, which appear whole or not at all, even if their writer is killed (POSIX systems).

A writer locks its temporary file while it runs. So an unlocked temporary file was left by a killed writer, and may be
removed. On a file system without locks temporary files of killed writers are never removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from keep_agent.errors import ConfigError, StorageError
from keep_agent.files import writing

SUFFIX = ".partial"


@contextmanager
def replace_file(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a stream; at the end of the ``with`` statement its content replaces ``path`` and survives a power cut.

    Until then, and after any error, the old file is valid. Of several writers the last wins. Missing folders are made.
    ``private``: only the user may read the file. A link is replaced, not its target. Raises `CapacityError` if the disk
    is full, `StorageError` if nothing can be written, or for a device, pipe or socket.
    """
    with writing(path, "free some space, or lower the budget"):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise StorageError(f"{path} is a device, pipe or socket: name a file")
        _make_folder(path.parent)
        with _temporary(path) as temporary, _create(temporary, 0o600 if private else 0o666) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing, as `replace_file` does."""
    with replace_file(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """Make a folder to fill. It gets its name at the end of the ``with`` statement; after an error it is removed.

    Once named, it survives a power cut. All files are written before the first is synced, so that the disk writes them
    together. An empty folder of that name is replaced. A folder with files raises OSError.
    """
    _make_folder(folder.parent)
    with _temporary(folder) as temporary:
        temporary.mkdir()
        yield temporary
        for path in (*sorted(temporary.rglob("*")), temporary):
            sync(path)
        temporary.rename(folder)


def link_atomic(path: Path, target: Path) -> None:
    """Make ``path`` a symbolic link to ``target``, atomically replacing an existing file or link."""
    with _temporary(path) as temporary:
        temporary.symlink_to(target)
        temporary.replace(path)


def remove_temp(folder: Path) -> list[Path]:
    """Remove unlocked temporary files (those of killed writers, and any links), but no folders; return their paths."""
    return [file for file in sorted(folder.glob(f".*{SUFFIX}")) if _remove_abandoned(file)]


def sync(path: Path) -> None:
    """Sync a file's content, or the names added, renamed and removed in a folder: a power cut does not undo them."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def lock_is_held(file: BinaryIO | int) -> bool:
    """Tell whether another opening of a file or folder, in any process, holds its lock; if not, lock it until closed.

    On a file system without locks nothing is locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Lock a folder (made if missing) against other processes that lock it; wait while one of them holds the lock."""
    with writing(folder):
        _make_folder(folder)
        number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder (made if missing) against other processes that lock it; at the end remove it if it is empty.

    Raises `ConfigError` while another process holds the lock, `StorageError` if no folder can be made.
    """
    with writing(folder):
        _make_folder(folder)
    number = os.open(folder, os.O_RDONLY)
    try:
        if lock_is_held(number):
            raise ConfigError(f"another process is at work in {folder}; wait for it, or stop it")
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()
    finally:
        os.close(number)


def _make_folder(folder: Path) -> None:
    """Make the folder and those above it; new names survive a power cut."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a hidden path beside ``path`` for its replacement, a file or folder. After an error remove it."""
    temporary = path.with_name(f".{path.name}.{token_hex(4)}{SUFFIX}")
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # a folder
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # a file or link
        raise
    sync(path.parent)


def _create(path: Path, mode: int) -> BinaryIO:
    """Create a temporary file, and open its stream, locked."""
    while True:
        stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(stream, fcntl.LOCK_EX)
        if os.fstat(stream.fileno()).st_nlink:
            return stream
        stream.close()  # `remove_temp` removed it between creating and locking


def _remove_abandoned(file: Path) -> bool:
    """Remove a temporary file unless its writer holds, or may hold, the lock."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except OSError:  # the file is in use, just finished or another user's, or cannot be locked
        return False
    return True
