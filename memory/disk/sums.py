"""Checksums of a model folder's files, in a list that sha256sum writes and reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keep_agent.errors import ModelError

CHECKSUMS = "SHA256SUMS"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests_of(paths: Iterable[Path]) -> dict[Path, str]:
    """SHA-256 of each file's content; several are read at once."""
    paths = list(dict.fromkeys(paths))
    with ThreadPoolExecutor() as pool:
        return dict(zip(paths, pool.map(_digest, paths), strict=True))


def write_sums(path: Path, digests: Mapping[str, str]) -> None:
    """Write a list of SHA-256 by file name."""
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def read_sums(path: Path) -> dict[Path, str]:
    """SHA-256 by file, as a list has it; empty where there is no list.

    :raises ModelError: the list cannot be read, or names a file that is not there
    """
    if not path.is_file():
        return {}
    try:
        lines = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is damaged: it is not UTF-8 text ({error}); fetch or build it again.") from error
    if broken := [" ".join(pair) for pair in lines if len(pair) != 2]:
        raise ModelError(f"{path} has a line without a file name ({broken[0]!r}); fetch or build it again.")
    listed = {path.parent / name.strip().lstrip("*"): digest for digest, name in lines}
    if missing := [file for file in listed if not file.is_file()]:
        raise ModelError(f"{missing[0]} is listed in {path} but missing; restore it, or take its line out of the list.")
    return listed


def check_sums(path: Path, found: Mapping[Path, str] | None = None) -> None:
    """Compare what a list says of its files with their content, or with SHA-256 that were ``found``.

    :raises ModelError: a file has another checksum; it is named
    """
    listed = read_sums(path)
    found = digests_of(listed) if found is None else found
    for file, due in listed.items():
        if found[file] != due:
            raise ModelError(
                f"{file} is corrupt or was changed: SHA-256 {found[file][:12]}... instead of {due[:12]}... in {path}; "
                f"fetch or build it again, or, if it was changed on purpose, put its new checksum into {path.name} or "
                "take its line out."
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
