"""Ends a process with all that it has started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from subprocess import Popen


def kill(process: Popen | None) -> None:
    """Kill it and its descendants: a script that wraps the build (xvfb-run) would leave that behind.

    They are looked up first, as nobody can tell whose they were once it is dead.
    """
    if process is None or process.poll() is not None:
        return
    family = descendants(process.pid)
    process.kill()
    for number in family:
        with suppress(OSError):
            os.kill(number, SIGKILL)


def descendants(process: int) -> list[int]:
    """Those it has started, and theirs. Only Linux tells."""
    try:
        lists = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(number) for text in lists for number in text.split()]
    return [*children, *(one for child in children for one in descendants(child))]
