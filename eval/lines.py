"""Files of one checked JSON line per episode that a stopped command goes on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError
from keep_agent.files import read_json
from memory.disk.atomic import write_atomic
from memory.disk.lines import LineFile, read_lines

REMEDY = "restore the file, or name another one"


def begin_lines(path: Path, config: Mapping[str, Any]) -> tuple[LineFile, list[dict[str, Any]]]:
    """``path`` to append to, and what its whole lines hold; half a line at its end is cut off.

    :raises ConfigError: it was made with another ``config``
    :raises DataError: a line is damaged
    """
    about = path.with_name(path.name + ".json")
    if not path.exists():
        write_atomic(about, json.dumps(config, indent=1))
        return LineFile(path), []
    if not about.exists() or read_json(about, f"delete it and {path}") != json.loads(json.dumps(config)):
        raise ConfigError(f"{path} was made with other settings, see {about.name}; name another file, or delete both")
    lines = list(read_lines(path, REMEDY))
    return LineFile(path, lines[-1] if lines else None), [line.value for line in lines]
