"""Scene of a game of ALFWorld: its file, the one task in it, and the words for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError
from keep_agent.files import parsed, read_json

NEEDED = ("pddl_domain", "grammar", "pddl_problem")
_TASK = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_REMEDY = "restore it from ALFWorld's download, or delete it"


@dataclass(frozen=True, slots=True)
class Game:
    """A ``game.tw-pddl``: JSON with the rules, the grammar of the text, the start state and the goal."""

    file: Path

    def read(self) -> dict[str, Any]:
        """Its content. Raises DataError for a file that is missing or no game."""
        content = read_json(self.file, _REMEDY)
        lacking = [key for key in NEEDED if not isinstance(content, dict) or not isinstance(content.get(key), str)]
        if lacking:
            raise DataError(f"{self.file} is no game, it has no {', '.join(lacking)}; {_REMEDY}")
        return content


@dataclass(frozen=True, slots=True)
class Task:
    id: str  # the trial
    type: str
    instruction: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One game, one task."""

    id: str
    scene: Game
    tasks: tuple[Task, ...]


def instruction_of(game: Mapping[str, Any], file: Path) -> str:
    """What the game's own text asks for, without its full stop. Raises DataError where it asks for nothing."""
    found = _TASK.search(game["grammar"])
    if found is None:
        raise DataError(f"{file} asks for nothing ('Your task is to: ...' is missing); {_REMEDY}")
    return parsed(f'"{found[1]}"', f"{file}: the task of its grammar", _REMEDY).removesuffix(".")
