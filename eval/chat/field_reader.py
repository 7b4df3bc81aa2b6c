"""Reader of fields in external data files: checks that a field exists and has the right type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from keep_agent.errors import DataError

T = TypeVar("T")
ENDINGS = (".json", ".json.gz")
REMEDY = "fetch it again, or give data=FILE_OR_FOLDER"


def field(row: Any, name: str, kind: type[T] | tuple[type, ...], where: str) -> T:
    """Return ``row[name]`` of type ``kind``. Raises DataError, in which ``where`` names the file and the entry."""
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: an object with the field {name!r} was expected, not {type(row).__name__}")
    if name not in row:
        raise DataError(f"{where}: the field {name!r} is missing")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        types = " or ".join(k.__name__ for k in kinds)
        raise DataError(f"{where}: the field {name!r} should be {types}, but it is {type(value).__name__}")
    return value
