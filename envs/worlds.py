"""Worlds: gymnasium ids, and the class `WorldSpec` with one instance per world: ``SPEC`` in envs/NAME/spec.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keep_agent.errors import ConfigError, check_choice

if TYPE_CHECKING:
    import gymnasium

    from envs.setting import Episode, Setting


@dataclass(frozen=True)
class WorldSpec:
    """Settings and episodes of one world. A world with training episodes overrides `play_setting` and `goal_text`."""

    title: str
    setting: type[Setting]  # dataclass whose fields are the world's choices; raises ConfigError for invalid values
    load: Callable[..., Sequence[Episode]]  # takes (data, split, stream, seed, limit); raises ConfigError, DataError
    simulator_choices: tuple[str, ...] = ()  # names of the choices that concern a simulator and its files
    learns_from_files: bool = True  # whether training episodes come from ``data``; else they are generated

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the setting's choices, which are also options of the environment."""
        return tuple(field.name for field in fields(self.setting) if field.init)

    def episodes(
        self, data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
    ) -> Sequence[Episode]:
        """Load episodes. Raises ConfigError for invalid settings, DataError for unreadable files."""
        return self.load(data, split, stream, seed, limit)

    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """Load episodes for training, or for the worked examples in a prompt."""
        return self.load(data, "train", stream, seed, limit)

    def play_setting(self, skills: str, observability: str, episode: Any, rng: Random) -> Setting:
        """Return the setting in which a training episode is played, without a simulator."""
        raise ConfigError(f"{self.title} is for tests; record training rollouts in {' or '.join(GENERATED)}")

    def reword(self, episode: Any, task: Any, rng: Random) -> str:
        """Return a wording of a generated task, drawn with ``rng``; by default the task's instruction."""
        return task.instruction

    def goal_text(self, task: Any) -> str:
        """Return a task's goal as plain verbs and types of objects, in a fixed order."""
        raise ConfigError(f"{self.title} is for tests; the goals of its tasks are not used for training")

    def label(self, env: Mapping[str, Any]) -> str:
        """Return the world's name for a run's title. ``env``: the run's config group, which may lack newer keys."""
        return self.title


@dataclass(frozen=True, slots=True)
class WorldEntry:
    """A registered world. Its modules are imported when its spec or an environment is needed."""

    id: str  # `gymnasium.make` imports the module before the colon
    env: str  # module and class of the environment
    generated: bool = True  # whether it has generated households, for evaluation and training

    @property
    def spec(self) -> WorldSpec:
        package = self.env.partition(":")[0].rpartition(".")[0]
        return import_module(f"{package}.spec").SPEC


WORLDS: Mapping[str, WorldEntry] = MappingProxyType(
    {
        "alfred": WorldEntry("keep_agent:Alfred-v0", "envs.alfred.env:AlfredEnv"),
        "wah": WorldEntry("keep_agent:WatchAndHelp-v0", "envs.wah.env:WatchAndHelpEnv"),
        "alfworld": WorldEntry("keep_agent:ALFWorld-v0", "envs.alfworld.env:AlfworldEnv", generated=False),
    }
)
GENERATED: Mapping[str, WorldEntry] = MappingProxyType({key: world for key, world in WORLDS.items() if world.generated})
_BY_ID = {world.id: world for world in WORLDS.values()}


def register_worlds() -> None:
    """Register each world's id in gymnasium, unless it is registered already."""
    from gymnasium.envs.registration import register, registry  # lazy: specs need no gymnasium

    for world in WORLDS.values():
        name = world.id.partition(":")[2]
        if name not in registry:
            register(name, world.env)


def make_world(env_id: str, **options: Any) -> gymnasium.Env:
    """Return the environment of an id, without gymnasium's checker. Raises ConfigError for an unknown id."""
    import gymnasium

    check_choice("env.id", env_id, _BY_ID)
    register_worlds()
    return gymnasium.make(env_id, disable_env_checker=True, **options)


def spec_of(env_id: str) -> WorldSpec:
    """Return the spec of a gymnasium id. Raises ConfigError for an unknown id."""
    check_choice("env.id", env_id, _BY_ID)
    return _BY_ID[env_id].spec


def choices_of(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting's choices in the config group ``env``; a missing choice keeps its default."""
    return {key: env[key] for key in spec_of(env["id"]).choices if key in env}


def without_simulator(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return `choices_of` without the simulator's choices, which are needed only to play."""
    simulator = spec_of(env["id"]).simulator_choices
    return {key: value for key, value in choices_of(env).items() if key not in simulator}


if sys.modules.get("gymnasium"):
    register_worlds()
