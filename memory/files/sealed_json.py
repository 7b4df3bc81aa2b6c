"""Sealed JSON file: one object whose last key, ``sum``, is a checksum of the rest of the file.

Files of older versions lack that key. They are read unchecked, unless they have a key that only newer versions write.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keep_agent.errors import CorruptError, DataError
from keep_agent.files import parsed, read_bytes
from memory.files.atomic import write_atomic

KEY, KIND = b'"sum": "', b"crc32:"  # either shows that there is a checksum: one flipped bit cannot hide both
END = len(b'"sum": "crc32:00000000"\n}\n')


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write the object atomically, with its checksum."""
    text = json.dumps({**value, "sum": ""}, indent=2, ensure_ascii=False)
    body = text.encode().removesuffix(b'"sum": ""\n}')
    write_atomic(path, body + _end(body))


def read_sealed(path: Path, remedy: str, key: str = "") -> dict[str, Any]:
    """Read the object of a file; if it has ``key``, it must have a checksum. Raises CorruptError or DataError."""
    raw = read_bytes(path, remedy)
    body, end = raw[:-END], raw[-END:]
    sealed = KEY in end or KIND in end
    if sealed and end != _end(body):
        raise CorruptError(f"{path} is damaged or was changed (its checksum does not match): restore it; {remedy}")
    value = parsed(raw, path, remedy)
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object; {remedy}")
    if key in value and not sealed:
        raise CorruptError(f"{path} has lost its checksum, the key 'sum': restore it; {remedy}")
    value.pop("sum", None)
    return value


def _end(body: bytes) -> bytes:
    return b'%s%s%08x"\n}\n' % (KEY, KIND, zlib.crc32(body))
