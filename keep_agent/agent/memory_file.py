"""Memory file of an agent: a line with a checksum, then JSON on one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import count_values, parsed, reading, writing
from memory.files.atomic import remove_temp, write_atomic

MAGIC = "keep-agent memory 1 sha256:"


def memory_path(path: str | Path) -> Path:
    """Return the path of a memory file. Raises ConfigError for a path without a file name."""
    if not isinstance(path, str | Path) or not Path(path).name or "\0" in str(path):
        raise ConfigError(f"path={path!r:.80}: name a file, such as 'kitchen.memory'")
    return Path(path)


def write_packed(path: Path, content: bytes) -> None:
    """Atomically write ``content``, the result of `pack_state`. Missing folders are created."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_temp(path.parent)  # partial files that a killed writer has left
    write_atomic(path, content)


def read_memory(path: Path) -> dict[str, Any]:
    """Read a file that `write_packed` wrote. Raises DataError for another file, CorruptError for a damaged one."""
    return unpack_state(read_packed(path), str(path))


def read_packed(path: Path) -> bytes:
    """Read a file's content for `unpack_state`. Raises DataError if it cannot be read."""
    with reading(path, "give one that save() wrote"):
        return path.read_bytes()


def pack_state(state: Mapping[str, Any]) -> bytes:
    body = json.dumps(state, separators=(",", ":"), ensure_ascii=False).encode()
    return f"{MAGIC}{sha256(body).hexdigest()}\n".encode() + body + b"\n"


def unpack_state(content: bytes, name: str, most: int | None = None) -> dict[str, Any]:
    """Return the state in ``content``. Raises DataError naming ``name``, also for more than ``most`` JSON values."""
    head, _, body = content.partition(b"\n")
    if not head.startswith(MAGIC.encode()):
        raise DataError(
            f"{name} is not an agent's memory: it does not begin with {MAGIC!r}; give one that save() wrote"
        )
    body = body.removesuffix(b"\n")
    if head.decode(errors="replace").removeprefix(MAGIC) != sha256(body).hexdigest():
        raise CorruptError(f"{name} is damaged: its checksum does not match; use an older copy")
    if most is not None and (count := count_values(body)) > most:
        raise DataError(f"{name} holds {count} values, more than {most}; give one that save() wrote")
    state = parsed(body, name, "use an older copy", finite=True)
    if not isinstance(state, dict):
        raise DataError(f"{name} is not an agent's memory; give one that save() wrote")
    return state
