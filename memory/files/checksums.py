"""Checksums of a model folder's files, in a list in the format of sha256sum."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keep_agent.errors import ModelError
from keep_agent.files import loading

CHECKSUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-fA-F]{64})\s+\*?(.+)")
REMEDY = "fetch or build it again"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests_of(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the SHA-256 of each file's content; several files are read in parallel."""
    paths = list(dict.fromkeys(paths))
    with ThreadPoolExecutor() as pool:
        return dict(zip(paths, pool.map(_digest, paths), strict=True))


def write_sums(path: Path, digests: Mapping[str, str]) -> None:
    """Write a list of SHA-256 by file name."""
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def read_sums(path: Path) -> dict[Path, str]:
    """Read the SHA-256 (lower case) of each file from a list; {} if there is no list. The files are not opened.

    :raises ModelError: the list cannot be read or lists nothing, or names a file that is not in its folder
    """
    if not path.exists():
        return {}
    with loading(f"the checksums in {path}", REMEDY):
        lines = [line for line in path.read_text("utf-8").split("\n") if line.strip()]
    if not lines:
        raise ModelError(f"{path} is empty; {REMEDY}, or remove it if the files are not to be checked.")
    sums = dict(_entry(path, line) for line in lines)
    if missing := [file for file in sums if not file.is_file()]:
        raise ModelError(f"{missing[0]} is listed in {path} but missing; restore it, or take its line out of the list.")
    return sums


def _entry(path: Path, line: str) -> tuple[Path, str]:
    """Parse a line of the list ``path``; returns the file that it names, and the SHA-256."""
    match = LINE.fullmatch(line.strip())
    if match is None:
        raise ModelError(f"{path} has a line that is not a SHA-256 and a file name ({line.strip()!r:.100}); {REMEDY}.")
    digest, name = match.groups()
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelError(f"{path} names {name!r:.100}, which is not in its folder; {REMEDY}.")
    return path.parent / name, digest.lower()


def check_sums(path: Path, known: Mapping[Path, str] | None = None) -> None:
    """Raise ModelError if a file's SHA-256 differs from the list; ``known``: the SHA-256 of all files, if computed."""
    sums = read_sums(path)
    actual = digests_of(sums) if known is None else known
    for file, due in sums.items():
        if actual[file] != due:
            raise ModelError(
                f"{file} is corrupt or was changed: SHA-256 {actual[file][:12]}... instead of {due[:12]}... in {path}; "
                f"fetch or build it again, or, if it was changed on purpose, put its new checksum into {path.name} or "
                "take its line out."
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
