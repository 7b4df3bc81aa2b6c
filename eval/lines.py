"""Files of one JSON line per episode that a stopped command goes on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError
from keep_agent.runfolder import whole_lines
from memory.disk.atomic import write_atomic


def begin_lines(path: Path, config: Mapping[str, Any]) -> list[Any]:
    """The whole lines of ``path``, which was made with the same ``config``; half a line at its end is cut off.

    :raises ConfigError: it was made otherwise
    """
    about = path.with_name(path.name + ".json")
    if not path.exists():
        write_atomic(about, json.dumps(config, indent=1))
        return []
    if not about.exists() or json.loads(about.read_text()) != json.loads(json.dumps(config)):
        raise ConfigError(f"{path} was made with other settings, see {about.name}; name another file, or delete both")
    return [json.loads(line) for line in whole_lines(path, cut=True)]


def append_line(path: Path, value: Any) -> None:
    """Add one line; it is on its way to the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")
