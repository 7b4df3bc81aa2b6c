"""Folder versions: all files of a new version replace the old ones atomically, by one rename.

    RUN/checkpoints/step-100/                          the previous version
    RUN/checkpoints/step-200/config.json
    RUN/checkpoints/latest     -> step-200             the link that is renamed
    RUN/config.json            -> checkpoints/latest/config.json

Readers of RUN see the files of a single version. One writer at a time is allowed (`memory.files.atomic.lock_folder`).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from keep_agent.errors import DataError
from keep_agent.files import writing
from memory.files.atomic import SUFFIX, create_folder, link_atomic

VERSIONS, LATEST = "checkpoints", "latest"


def latest(folder: Path) -> Path:
    """Find the newest version of ``folder``; the folder itself if it has none.

    Without the link a single version counts as the newest: a copy may lack the link, or the writer was killed.

    :raises DataError: the newest version is missing, or there are several versions and no link
    """
    link = folder / VERSIONS / LATEST
    if link.is_symlink() and not link.exists():
        raise DataError(
            f"{link} leads to {str(link.readlink())!r}, which does not exist; restore it, or link to another version"
        )
    if link.exists():
        return link.resolve()
    match versions := _versions(link.parent):
        case []:
            return folder
        case [only]:
            return only.resolve()
    names = ", ".join(version.name for version in versions)
    raise DataError(f"{link}, the link to the newest of {names}, is missing; make it again: ln -s NEWEST {link}")


@contextmanager
def new_version(folder: Path, name: str) -> Iterator[Path]:
    """Make a folder to fill, which becomes the latest version of ``folder`` at the end of the ``with`` statement.

    From then on it survives a power cut, and only the previous version stays beside it. An error changes nothing.

    :raises CapacityError: the disk is full
    :raises StorageError: the folder cannot be written, or its file system has no symbolic links
    """
    with writing(folder / VERSIONS / name):
        _repair(folder)
        version = _unused(folder / VERSIONS, name)
        with create_folder(version) as new:
            yield new
        _publish(folder, version)


def _publish(folder: Path, version: Path) -> None:
    """Make ``version`` the latest; the files of ``folder`` are those of one version at any time."""
    before = latest(folder)
    _link(folder, (file.name for file in version.iterdir() if not (folder / file.name).exists()))
    link_atomic(version.parent / LATEST, Path(version.name))
    for file in folder.iterdir():
        if file.is_symlink() and not file.exists():  # the new version lacks the file
            file.unlink()
    _remove(version.parent, {version.name, before.name})


def _repair(folder: Path) -> None:
    """Remove files of a killed writer, and restore links that a copy or an editor replaced by files."""
    link = folder / VERSIONS / LATEST
    if link.is_dir() and not link.is_symlink():
        _remove(link.parent, ())  # removes other versions: `latest` needs a single version while the link is missing
        link_atomic(link, Path(link.rename(_unused(link.parent, "copied")).name))
    version = latest(folder)
    if version != folder:
        if not link.exists():
            link_atomic(link, Path(version.name))
        _link(folder, (file.name for file in version.iterdir() if not (folder / file.name).is_symlink()))
    for stray in folder.glob(f".*{SUFFIX}"):
        if stray.is_symlink():
            stray.unlink()
    _remove(link.parent, {version.name})


def _link(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        link_atomic(folder / name, Path(VERSIONS, LATEST, name))


def _versions(place: Path) -> list[Path]:
    """List the complete versions by name."""
    folders = sorted(place.iterdir()) if place.is_dir() else ()
    return [version for version in folders if version.is_dir() and not version.name.endswith(SUFFIX)]


def _unused(place: Path, name: str) -> Path:
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(place / name for name in names if not (place / name).exists())


def _remove(place: Path, keep: Collection[str]) -> None:
    """Remove all versions except those to ``keep``."""
    for stray in place.iterdir() if place.is_dir() else ():
        if stray.name not in (*keep, LATEST):
            shutil.rmtree(stray) if stray.is_dir() and not stray.is_symlink() else stray.unlink()
