"""Resources of a process: open files, threads, children, temporary folders; and whether it is running."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import until


def open_resources() -> dict[str, set[str]]:
    """Return the resources of this process by kind; open files by number and target, because numbers are reused."""
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
    """Return the children of all threads of a process; a thread that ends during the call has none."""
    ids = set[int]()
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            ids.update(map(int, (thread / "children").read_text().split()))
    return ids


@contextmanager
def no_leaks() -> Iterator[None]:
    """Assert that everything that the ``with`` block opens is closed at its end or soon after."""
    before = open_resources()
    yield
    until(lambda: not _more(before), lambda: str(_more(before)))


def runs(process: int) -> bool:
    """Return whether a process is running; a zombie (state Z), which its parent has not yet awaited, is not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _more(before: dict[str, set[str]]) -> dict[str, set[str]]:
    current = open_resources()
    return {kind: current[kind] - before[kind] for kind in current if current[kind] - before[kind]}
