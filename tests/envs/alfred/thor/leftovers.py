"""Resources that a process holds: open files, threads, children, temporary folders; and whether it runs at all."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import until


def held_now() -> dict[str, set[str]]:
    """By kind. Links of open files are named by what they lead to, as numbers are given again."""
    gc.collect()
    files = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            files.add(f"{link.name} {link.readlink()}")
    return {
        "files": files,
        "threads": {thread.name for thread in threading.enumerate()},
        "children": {str(child) for child in children("self")},
        "folders": {str(path) for path in Path(tempfile.gettempdir()).glob("tmp*") if (path / "server.pipe").exists()},
    }


def children(process: int | str) -> set[int]:
    """Of all its threads. One that ends between the list of them and the look at it has none any more."""
    found = set[int]()
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (thread / "children").read_text().split()))
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """Return everything that the block opens is closed at its end, or soon after."""
    before = held_now()
    yield
    until(lambda: not _more(before), lambda: str(_more(before)))


def runs(process: int) -> bool:
    """Not ended, whether or not whoever inherited it has taken note (then it is a zombie, state Z)."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _more(before: dict[str, set[str]]) -> dict[str, set[str]]:
    now = held_now()
    return {kind: now[kind] - before[kind] for kind in now if now[kind] - before[kind]}
