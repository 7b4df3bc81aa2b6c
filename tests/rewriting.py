"""Run files as they would be with other content: changed, and written with the checksums that go with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory.disk.lines import LineFile, read_lines
from memory.disk.sealed import read_sealed, write_sealed

Change = Callable[[dict[str, Any]], object]


def change_object(file: Path, change: Change) -> None:
    content = read_sealed(file, "")
    change(content)
    write_sealed(file, content)


def change_lines(file: Path, *changes: Change) -> None:
    """Apply a change to each of the first lines; the others stay as they are."""
    rows = [line.value for line in read_lines(file)]
    for row, change in zip(rows, changes, strict=False):
        change(row)
    file.unlink()
    LineFile(file).append(rows)
