"""Household of the graph world as the backend of the fake simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from envs.wah.action import Action
from envs.wah.data.formats import read_graph, write_graph
from envs.wah.home import Home
from keep_agent.errors import KeepError


class GraphHome:
    """Home whose scenes are apartments (None: the first); an expanded graph replaces the current scene."""

    def __init__(self, scenes: Sequence[Mapping[str, Any]]) -> None:
        self._scenes = scenes
        self._home: Home | None = None
        self.reset(None)

    def reset(self, scene: int | None) -> None:
        if scene is not None and not 0 <= scene < len(self._scenes):
            raise IndexError(scene)
        self._graph, self._home = dict(self._scenes[scene or 0]), None

    def graph(self) -> dict[str, Any]:
        return self._graph if self._home is None else write_graph(self._home.graph)

    def expand(self, graph: dict[str, Any]) -> None:
        self._graph, self._home = graph, None

    def add_character(self, room: str | None) -> bool:
        self._home = Home(read_graph(self._graph), room)
        return True

    def run(self, lines: list[str]) -> tuple[bool, str]:
        try:
            return all(self._home.act(_action(line)) for line in lines), "it could not be done"
        except KeepError as error:
            return False, str(error)


def _action(line: str) -> Action:
    """Parse a script line such as <char0> [walk] <fridge> (104)."""
    verb, *ids = (part[1:-1] for part in re.findall(r"\[\w+\]|\(\d+\)", line))
    return Action(verb, *map(int, ids))
