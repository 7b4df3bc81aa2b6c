"""World spec: what a world offers to the parts that serve any world. Each is ``SPEC`` in ``envs/NAME/spec.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from envs.setting import Episode, Setting
from keep_agent.errors import ConfigError


@dataclass(frozen=True)
class WorldSpec:
    """Settings and episodes of one world. As it stands, it plays; training episodes need the methods of a subclass."""

    title: str  # for people
    setting: type[Setting]  # a dataclass of the world's choices; raises ConfigError for bad ones
    load: Callable[..., Sequence[Episode]]  # by data, split, stream, seed, limit; raises ConfigError, DataError
    simulator_choices: tuple[str, ...] = ()  # of the setting's: those of simulators and their files
    learns_from_files: bool = True  # whether training episodes come from ``data``, or are generated whatever it says

    @property
    def choices(self) -> tuple[str, ...]:
        """The names of what the setting takes; an environment takes the same."""
        return tuple(field.name for field in fields(self.setting) if field.init)

    def episodes(
        self, data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
    ) -> Sequence[Episode]:
        """Raises ConfigError for what cannot work, DataError for files that cannot be read."""
        return self.load(data, split, stream, seed, limit)

    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """Episodes to learn from, or to show as worked examples."""
        return self.load(data, "train", stream, seed, limit)

    def recorded(self, skills: str, observability: str, episode: Any, rng: Random) -> Setting:
        """The setting in which a training episode is played, without a simulator."""
        raise ConfigError(f"{self.title} is a test: rollouts to learn from are recorded in ALFRED's houses")

    def reword(self, episode: Any, task: Any, rng: Random) -> str:
        """Another wording of an embedded task."""
        return task.instruction

    def goal_text(self, task: Any) -> str:
        """A task's goal in plain words and the types of its facts, always in the same order."""
        raise ConfigError(f"{self.title} is a test: the goals of its tasks are not for training")

    def label(self, env: Mapping[str, Any]) -> str:
        """The world's name in a run's title, by the config of its ``env``; an older one may lack newer keys."""
        return self.title
