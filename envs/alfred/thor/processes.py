"""Processes with their descendants."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from subprocess import Popen


def kill(process: Popen | None) -> None:
    """Kill a process and its descendants, such as a build started by a script (xvfb-run).

    The descendants are listed first, because their parent is unknown once the process is dead.
    """
    if process is None or process.poll() is not None:
        return
    family = descendants(process.pid)
    process.kill()
    for number in family:
        with suppress(OSError):
            os.kill(number, SIGKILL)


def descendants(process: int) -> list[int]:
    """Return the process ids of all descendants; empty on systems other than Linux."""
    try:
        lists = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(number) for text in lists for number in text.split()]
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]
