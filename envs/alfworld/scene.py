"""Scene of an ALFWorld game: its file, its only task and the instruction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError
from keep_agent.files import parsed, read_json

REQUIRED_KEYS = ("pddl_domain", "grammar", "pddl_problem")
_TASK = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_REMEDY = "restore it from ALFWorld's download, or delete it"


@dataclass(frozen=True, slots=True)
class Game:
    """File ``game.tw-pddl``: JSON with the rules, the grammar of the text, the initial state and the goal."""

    file: Path

    def read(self) -> dict[str, Any]:
        """Read the file. Raises DataError if it is missing or not a game."""
        content = read_json(self.file, _REMEDY)
        keys = content if isinstance(content, dict) else {}
        absent = [key for key in REQUIRED_KEYS if not isinstance(keys.get(key), str)]
        if absent:
            raise DataError(f"{self.file} is not a game: it has no {', '.join(absent)}; {_REMEDY}")
        return content


@dataclass(frozen=True, slots=True)
class Task:
    id: str  # name of the trial's folder
    type: str
    instruction: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One game with its single task."""

    id: str
    scene: Game
    tasks: tuple[Task, ...]


def instruction_of(game: Mapping[str, Any], file: Path) -> str:
    """Return the instruction in a game's text, without full stop. Raises DataError if the text has no instruction."""
    match = _TASK.search(game["grammar"])
    if match is None:
        raise DataError(f"{file} has no instruction ('Your task is to: ...' is missing); {_REMEDY}")
    return parsed(f'"{match[1]}"', f"{file}: the task of its grammar", _REMEDY).removesuffix(".")
