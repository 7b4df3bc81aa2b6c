"""Fields of what others wrote, which are there and what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from keep_agent.errors import DataError

T = TypeVar("T")
ENDINGS = (".json", ".json.gz")
REMEDY = "fetch it again, or give data=FILE_OR_FOLDER"


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
