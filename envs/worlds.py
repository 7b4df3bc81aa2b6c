"""The worlds by their gymnasium ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from envs.setting import Episode, Setting
from keep_agent.errors import check_choice


class World(Protocol):
    """Where a world's episodes come from, and how it is set."""

    name: str
    choices: tuple[str, ...]  # what its setting takes, by name; an environment takes the same
    learns_from_files: bool  # whether training episodes come from ``data``, or are generated whatever it says

    def setting(self, **choices: Any) -> Setting:
        """Raises ConfigError for bad choices."""
        ...

    def episodes(
        self, data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
    ) -> Sequence[Episode]:
        """Raises ConfigError for what cannot work, DataError for files that cannot be read."""
        ...

    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """Episodes to learn from, or to show as worked examples."""
        ...

    def recorded(self, skills: str, observability: str, episode: Any, rng: Random) -> Setting:
        """The setting in which a training episode is played, without a simulator."""
        ...

    def reword(self, episode: Any, task: Any, rng: Random) -> str:
        """Another wording of an embedded task."""
        ...

    def asked_for(self, task: Any) -> str:
        """What a task asks for in plain words and the types of its facts, always in the same order."""
        ...

    def label(self, env: Mapping[str, Any]) -> str:
        """What a run is said to be played in, by the config of its ``env``; an older one may lack newer keys."""
        ...


WORLDS: Mapping[str, str] = MappingProxyType({"alfred": "keep_agent:Alfred-v0", "wah": "keep_agent:WatchAndHelp-v0"})
"""Those with households of their own, to play and to learn in."""
_GIVEN = {"alfworld": "keep_agent:ALFWorld-v0"}  # those that play what they are given
_OF_SIMULATORS = ("simulator", "record", "backend", "render", "thor", "data")
_MODULES = {env_id: f"envs.{name}.spec" for name, env_id in {**WORLDS, **_GIVEN}.items()}


def world_of(env_id: str) -> World:
    """The world behind a gymnasium id. Raises ConfigError for one that we do not know."""
    check_choice("env.id", env_id, _MODULES)
    return import_module(_MODULES[env_id]).WORLD


def choices_of(env: Mapping[str, Any]) -> dict[str, Any]:
    """What the config of a world's ``env`` chooses; what an older one does not hold is left to the world."""
    return {key: env[key] for key in world_of(env["id"]).choices if key in env}


def without_simulator(env: Mapping[str, Any]) -> dict[str, Any]:
    """`choices_of` the config without those of simulators and their files, which only a played episode needs."""
    return {key: value for key, value in choices_of(env).items() if key not in _OF_SIMULATORS}
