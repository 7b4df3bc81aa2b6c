"""Reading what others wrote: JSON, plain or gzipped, and fields that are there and what they should be."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from keep_agent.errors import DataError

T = TypeVar("T")
ENDINGS = (".json", ".json.gz")


def read_text(path: Path) -> str:
    """A file's text. Raises DataError if it is missing, damaged or no text."""
    try:
        return (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give data=FILE_OR_FOLDER") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch it again") from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not JSON ({error}); fetch it again") from None


def field(row: Any, name: str, kind: type[T] | tuple[type, ...], where: str) -> T:
    """``row[name]``, which has to be there and of ``kind``; ``where`` names the file and the place in it."""
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: an object with the field {name!r} was expected, not {type(row).__name__}")
    if name not in row:
        raise DataError(f"{where}: the field {name!r} is missing")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise DataError(f"{where}: the field {name!r} should be {wanted}, but it is {type(value).__name__}")
    return value
