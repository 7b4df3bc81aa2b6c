"""Agent files: one block file per agent and model in a folder, with an index, a budget and a time to live.

A file's name contains the agent's id; its header names agent and model. Its modification time is that of its last use.
The index, which saves reading headers, is rewritten if it differs from the files. Format: `memory.files.block_file`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from keep_agent.errors import CapacityError, ConfigError, DataError
from keep_agent.files import read_json
from memory.files.atomic import remove_temp, replace_file, sync
from memory.files.block_file import NONE, BlockFile, Tensors, open_blocks, write_blocks
from memory.files.names import AGENT_DIGITS, agent_stem, is_safe, short_hash
from memory.kv_cache.block import Entry
from memory.kv_cache.block_store import CacheLedger

INDEX, SUFFIX = "index.json", ".safetensors"
AGENT, MODEL, TOKENS = "agent", "model", "tokens"  # keys that `save_agent` adds to the header
MODEL_DIGITS = 16  # hexadecimal digits of the model key's SHA-256
FILE = re.compile(rf"(.+)-[0-9a-f]{{{AGENT_DIGITS}}}\.[0-9a-f]{{{MODEL_DIGITS}}}{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class AgentFile(Entry):
    """Entry of one file: name, size, agent, last use. ``model`` is "" and ``tokens`` 0 if the header is unusable."""

    model: str = ""
    tokens: int = 0


def agent_path(root: Path, agent: str, model_key: str) -> Path:
    """Return the path of an agent's file for a model; ids that differ only in case have different files.

    Raises `ConfigError` for an id that is not a safe file name.
    """
    if not model_key:
        raise ConfigError("the model key is empty: give the key of the model that computed the rows")
    return root / f"{agent_stem(agent)}.{short_hash(model_key, MODEL_DIGITS)}{SUFFIX}"


def save_agent(
    root: Path, agent: str, model_key: str, tokens: int, tensors: Tensors, header: dict[str, Any], extra: Tensors = NONE
) -> Path:
    """Replace an agent's file by ``tensors`` of ``tokens`` rows; agent, model and ``tokens`` go into the header."""
    path = agent_path(root, agent, model_key)
    owner = {AGENT: agent, MODEL: model_key, TOKENS: tokens}
    if owner.keys() & header.keys():
        raise ConfigError(f"{sorted(owner)} are added to every header: leave them out of yours")
    write_blocks(path, tensors, owner | header, extra)
    return path


def open_agent(root: Path, agent: str, model_key: str) -> BlockFile:
    """Map an agent's file and mark it as used now.

    Raises as `open_blocks` does, and `DataError` if the rows are those of another agent or model.
    """
    path = agent_path(root, agent, model_key)
    file = open_blocks(path)
    owner = (file.header.get(AGENT), file.header.get(MODEL))
    if owner != (agent, model_key):
        raise DataError(f"{path} holds the rows of agent {owner[0]!r} for model {owner[1]!r}: delete it")
    with suppress(OSError):  # another process has evicted the file, or the disk is read-only
        touch(path)
    return file


def touch(path: Path, at: float | None = None) -> None:
    """Set the time of a file's last use to now, or ``at``; files with the oldest time are evicted first."""
    time_ns = time.time_ns() if at is None else round(1e9 * at)
    os.utime(path, ns=(time_ns, time_ns))


def entries(root: Path) -> list[AgentFile]:
    """List all agents' files, the least recently used first, and bring the index up to date.

    Other files are left out. Only files that the index lacks, describes wrongly or has without a model are opened.
    """
    known = _read_index(root)
    files = [file for path in root.glob(f"*{SUFFIX}") if (file := _entry(path, known)) is not None]
    files.sort(key=lambda file: (file.timestamp, file.key))
    if files != list(known.values()) and root.is_dir():
        rows = [asdict(file) for file in files]
        with suppress(OSError, CapacityError), replace_file(root / INDEX, private=True) as stream:  # an optional file
            stream.write(json.dumps({"sum": _sum(rows), "files": rows}, indent=1).encode() + b"\n")
    return files


def total_bytes(root: Path) -> int:
    """Count the bytes of all agents' files."""
    return sum(file.nbytes for file in entries(root))


def forget(root: Path, agent: str, model_key: str | None = None) -> int:
    """Delete an agent's file for a model, or for all models, damaged ones too. Returns the number of files."""
    pattern = f"{agent_stem(agent)}.*{SUFFIX}" if model_key is None else agent_path(root, agent, model_key).name
    paths = [path for path in root.glob(pattern) if _owner(path) == agent and not path.is_dir()]
    _remove(root, paths)
    return len(paths)


def evict(
    root: Path,
    budget_bytes: int | None,
    pinned: Collection[str] = (),
    quota_bytes: int = 0,
    latest_expired: float = -inf,
) -> list[AgentFile]:
    """Delete expired files, then the least recently used until the total is at most ``budget_bytes``.

    Without a budget (None) only expired files are deleted. Files of ``pinned`` agents stay. Unexpired files of
    an agent stay if they total at most ``quota_bytes``, even above the budget. Temporary files of killed writers are
    deleted as well. Returns the deleted files; a process that has mapped such a file can still read it.

    :param latest_expired: files last used at this Unix time or before are expired
    """
    if (budget_bytes or 0) < 0:
        raise ConfigError(f"budget_bytes={budget_bytes} is negative: use 0 or more")
    remove_temp(root)
    ledger = CacheLedger(entries(root))
    victims = [file for file in ledger.expired(latest_expired) if file.owner not in pinned]
    for file in victims:
        ledger.remove(file.key)
    if budget_bytes is not None:
        victims += ledger.victims(
            ledger.nbytes - budget_bytes, lambda file, share: file.owner not in pinned and share > quota_bytes
        )
    _remove(root, [root / file.key for file in victims])
    return victims


def _owner(path: Path) -> str | None:
    """Return the agent in a file's name; None if it is not the file of an agent."""
    match = FILE.fullmatch(path.name)
    if match is None or not is_safe(match[1]) or not path.name.startswith(f"{agent_stem(match[1])}."):
        return None
    return match[1]


def _entry(path: Path, known: Mapping[str, AgentFile]) -> AgentFile | None:
    """Describe a file, from the index if it is up to date; None if this is not an existing file of an agent."""
    agent = _owner(path)
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if agent is None or S_ISDIR(state.st_mode):
        return None
    old, new = known.get(path.name), AgentFile(path.name, state.st_size, agent, state.st_mtime)
    if old is not None and old.model and replace(old, model="", tokens=0) == new:  # the index is up to date
        return old
    try:
        header = open_blocks(path).header
    except DataError:
        return new
    return (
        replace(new, model=header.get(MODEL, ""), tokens=header.get(TOKENS, 0)) if header.get(AGENT) == agent else new
    )


def _read_index(root: Path) -> dict[str, AgentFile]:
    """Read the index as entries by file name; {} if it is missing, damaged or of another version."""
    try:
        index = read_json(root / INDEX)
        rows = index["files"] if index["sum"] == _sum(index["files"]) else []
        return {row["key"]: AgentFile(**row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _sum(rows: list[dict[str, Any]]) -> str:
    """Return the checksum of the index."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _remove(root: Path, paths: list[Path]) -> None:
    """Delete files permanently, then bring the index up to date."""
    for path in paths:
        path.unlink(missing_ok=True)
    if paths:
        sync(root)
        entries(root)
