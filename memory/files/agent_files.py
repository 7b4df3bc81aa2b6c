"""Agent files: one block file per agent and model in a folder, with an index, a budget and a time to live.

The files alone count: their names hold the agent, their headers the model, their times of change the last use. The
index is a convenience, rewritten whenever it differs from them. Format of the files: `memory.files.block_file`.
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

import torch

from keep_agent.errors import CapacityError, ConfigError, DataError
from keep_agent.files import read_json
from memory.files.atomic import clean, replacing, sync
from memory.files.block_file import NONE, BlockFile, open_blocks, write_blocks
from memory.files.names import AGENT_DIGITS, agent_stem, is_safe, short_hash
from memory.kv_cache.block import Entry
from memory.kv_cache.block_store import CacheLedger

INDEX, SUFFIX = "index.json", ".safetensors"
AGENT, MODEL, TOKENS = "agent", "model", "tokens"  # what a header says of its owner
MODEL_DIGITS = 16  # of SHA-256
FILE = re.compile(rf"(.+)-[0-9a-f]{{{AGENT_DIGITS}}}\.[0-9a-f]{{{MODEL_DIGITS}}}{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True)
class AgentFile(Entry):
    """One file of a root: its name there, its size, its agent and its last use, and what its header says.

    ``model`` is "" and ``tokens`` 0 where the header cannot be read.
    """

    model: str = ""
    tokens: int = 0


def agent_path(root: Path, agent: str, model_key: str) -> Path:
    """Return the path of an agent's file for a model. Raises `ConfigError` for an id that is no safe name for a file.

    Ids that differ in upper and lower case only have different files, on every file system.
    """
    if not model_key:
        raise ConfigError("the model key is empty: give the key of the model that computed the rows")
    return root / f"{agent_stem(agent)}.{short_hash(model_key, MODEL_DIGITS)}{SUFFIX}"


def save_agent(
    root: Path,
    agent: str,
    model_key: str,
    tokens: int,
    tensors: Mapping[str, torch.Tensor],
    header: Mapping[str, Any],
    extra: Mapping[str, torch.Tensor] = NONE,
) -> Path:
    """Write an agent's rows, ``tokens`` in all, in place of its older ones; the header says whose they are."""
    path = agent_path(root, agent, model_key)
    owner = {AGENT: agent, MODEL: model_key, TOKENS: tokens}
    if owner.keys() & header.keys():
        raise ConfigError(f"a header says {sorted(owner)} by itself: leave them out")
    write_blocks(path, tensors, owner | dict(header), extra)
    return path


def open_agent(root: Path, agent: str, model_key: str) -> BlockFile:
    """Map an agent's file and mark it as used now.

    Raises as `open_blocks` does, and `DataError` if the rows are another agent's or another model's.
    """
    path = agent_path(root, agent, model_key)
    file = open_blocks(path)
    owner = (file.header.get(AGENT), file.header.get(MODEL))
    if owner != (agent, model_key):
        raise DataError(f"{path} holds the rows of agent {owner[0]!r} for model {owner[1]!r}: delete it")
    with suppress(OSError):  # evicted this moment, or a disk that is only read
        touch(path)
    return file


def touch(path: Path, at: float | None = None) -> None:
    """Mark a file as used now, or ``at`` a time; the least recently used are evicted first."""
    used = time.time_ns() if at is None else round(1e9 * at)
    os.utime(path, ns=(used, used))


def entries(root: Path) -> list[AgentFile]:
    """List all agents' files, the least recently used first. Files of other names are left out.

    Headers are read only of files that the index does not know as they are; the index is then brought up to date.
    """
    known = _read_index(root)
    files = [file for path in root.glob(f"*{SUFFIX}") if (file := _entry(path, known)) is not None]
    files.sort(key=lambda file: (file.timestamp, file.key))
    if files != list(known.values()) and root.is_dir():
        with suppress(OSError, CapacityError):  # a disk that is full or only read has no index, and needs none
            _write_index(root, files)
    return files


def total_bytes(root: Path) -> int:
    """Count the bytes of all agents' files."""
    return sum(file.nbytes for file in entries(root))


def forget(root: Path, agent: str, model_key: str | None = None) -> int:
    """Delete an agent's file for a model, or for all models; also damaged ones. Returns how many there were."""
    pattern = f"{agent_stem(agent)}.*{SUFFIX}" if model_key is None else agent_path(root, agent, model_key).name
    return len(_remove(root, [path for path in root.glob(pattern) if _owner(path) == agent and not path.is_dir()]))


def evict(
    root: Path,
    budget_bytes: int | None,
    pinned: Collection[str] = (),
    quota_bytes: int = 0,
    latest_expired: float = -inf,
) -> list[AgentFile]:
    """Delete expired files, then the least recently used until all together have no more than ``budget_bytes``.

    Files of ``pinned`` agents stay. The budget (None: no limit) also leaves the files of agents that have no more than
    ``quota_bytes`` together, even if that is too much. Returns what was deleted; what killed writers left behind is
    deleted as well. A process that has a deleted file mapped keeps its rows.

    :param latest_expired: files whose last use was at this time (seconds since 1970) or before are expired
    """
    if (budget_bytes or 0) < 0:
        raise ConfigError(f"budget_bytes={budget_bytes} is negative: use 0 or more")
    clean(root)
    ledger = CacheLedger(entries(root))
    chosen = [file for file in ledger.expired(latest_expired) if file.owner not in pinned]
    for file in chosen:
        ledger.remove(file.key)
    if budget_bytes is not None:
        chosen += ledger.victims(
            ledger.nbytes - budget_bytes, lambda file, share: file.owner not in pinned and share > quota_bytes
        )
    _remove(root, [root / file.key for file in chosen])
    return chosen


def _owner(path: Path) -> str | None:
    """Return the agent in a file's name, None if no agent has such a file."""
    match = FILE.fullmatch(path.name)
    if match is None or not is_safe(match[1]) or not path.name.startswith(f"{agent_stem(match[1])}."):
        return None
    return match[1]


def _entry(path: Path, known: Mapping[str, AgentFile]) -> AgentFile | None:
    """Describe a file, from the index if that is up to date; None if it is no agent's, no file or has just gone."""
    agent = _owner(path)
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if agent is None or S_ISDIR(state.st_mode):
        return None
    old, new = known.get(path.name), AgentFile(path.name, state.st_size, agent, state.st_mtime)
    # a model that is not known could not be read, and may be readable by now
    if old is not None and old.model and replace(old, model="", tokens=0) == new:
        return old
    model, tokens = _header(path, agent)
    return replace(new, model=model, tokens=tokens)


def _header(path: Path, agent: str) -> tuple[str, int]:
    """Read model and number of tokens; "" and 0 for a file that `open_agent` would refuse."""
    try:
        header = open_blocks(path).header
    except DataError:
        return "", 0
    if header.get(AGENT) != agent:
        return "", 0
    return header.get(MODEL, ""), header.get(TOKENS, 0)


def _read_index(root: Path) -> dict[str, AgentFile]:
    """Read the index by name of file; empty if there is none, it is damaged or of another version."""
    try:
        index = read_json(root / INDEX)
        rows = index["files"] if index["sum"] == _sum(index["files"]) else []
        return {row["key"]: AgentFile(**row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_index(root: Path, files: list[AgentFile]) -> None:
    rows = [asdict(file) for file in files]
    with replacing(root / INDEX, private=True) as stream:
        stream.write(json.dumps({"sum": _sum(rows), "files": rows}, indent=1).encode() + b"\n")


def _sum(rows: list[dict[str, Any]]) -> str:
    """Return the checksum without which an index is not used."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _remove(root: Path, paths: list[Path]) -> list[Path]:
    """Delete for good, then bring the index up to date."""
    for path in paths:
        path.unlink(missing_ok=True)
    if paths:
        sync(root)
        entries(root)
    return paths
