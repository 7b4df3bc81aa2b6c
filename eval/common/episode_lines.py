"""JSON-lines file with one checksummed line per episode, which an interrupted command can continue.

A line's checksum also covers earlier lines, and the settings in ``FILE.jsonl.json``. ``FILE.end`` counts the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError
from keep_agent.files import read_json
from memory.files.atomic import lock_is_held, sync, write_atomic
from memory.files.end_mark import MarkedFile, end_of, read_marked, read_marks
from memory.files.json_lines import Chain, LineFile, encode_json, read_lines

REMEDY = "restore the file, or name another file"


@contextmanager
def begin_lines(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[LineFile, list[dict[str, Any]]]]:
    """Lock ``path`` for appending; yield the file and the values of its lines. An append cuts off a partial last line.

    :raises ConfigError: the file was written with another ``config``, or another process is writing it
    :raises DataError: a line is damaged or missing, or the lines belong to another ``FILE.jsonl.json``
    """
    with path.open("ab") as stream:
        if lock_is_held(stream):
            raise ConfigError(f"{path} is being written by another process; wait for it, or stop it")
        sync(path.parent)  # makes the directory entry of a new file durable
        yield _open_lines(path, config)


def _open_lines(path: Path, config: Mapping[str, Any]) -> tuple[LineFile, list[dict[str, Any]]]:
    about, end, start = path.with_name(path.name + ".json"), end_of(path), Chain.for_owner(encode_json(config))
    new = not path.stat().st_size and not any(mark.count for mark in read_marks(path))
    if new and not about.exists():
        write_atomic(about, json.dumps(config, indent=1))
    elif not about.exists() or read_json(about, f"delete it, {path} and {end}") != json.loads(json.dumps(config)):
        raise ConfigError(
            f"{path} was made with other settings, see {about.name}; name another file, or delete {path.name}, "
            f"{about.name} and {end.name}"
        )
    if new:
        return MarkedFile.begin(path, start), []
    if not end.exists():  # written by an older version
        lines = list(read_lines(path, REMEDY))
        return LineFile(path, lines[-1] if lines else None), [line.value for line in lines]
    lines = read_marked(path, start, about.name, REMEDY)
    return MarkedFile(path, lines[-1] if lines else None, start), [line.value for line in lines]
