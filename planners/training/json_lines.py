"""Gzipped JSON-lines files of training data: one object per line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from keep_agent.errors import DataError
from keep_agent.files import parsed
from memory.files.atomic import clean, replacing

T = TypeVar("T")
REMEDY = "write it again with eval.dataset"
BROKEN = (
    OSError, EOFError, zlib.error, ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError
)  # fmt: skip


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a whole file or nothing; returns the number of rows."""
    clean(path.parent)  # of partial files of a killed writer
    count = 0
    with replacing(path) as file, gzip.open(file, "wt", compresslevel=4) as stream:
        for row in rows:
            stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            count += 1
    return count


def read_lines(path: Path, version: int, kind: str, unpack: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield ``unpack`` of each row. Raises DataError with file and line for a row that is no ``kind``."""
    number = 1
    try:
        with gzip.open(path, "rt") as stream:
            for line in stream:
                row = parsed(line, f"{path}:{number}", REMEDY)
                if row.get("version") != version:
                    raise ValueError(f"version {row.get('version')!r}, not {version}")
                yield unpack(row)
                number += 1
        if number == 1:
            raise ValueError("it is empty")
    except BROKEN as error:
        raise DataError(f"{path}:{number} is no {kind} ({error}); {REMEDY}") from error
