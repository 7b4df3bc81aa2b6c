"""ALFWorld, for those who serve any world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from envs.alfworld.episodes import load_episodes
from envs.alfworld.scene import Episode, Task
from envs.alfworld.setting import AlfworldSetting
from envs.setting import Observability
from keep_agent.errors import ConfigError


class Alfworld:
    name = "alfworld"
    choices = ("skills", "observability", "scored", "max_steps")
    learns_from_files = True

    def setting(self, **choices: Any) -> AlfworldSetting:
        return AlfworldSetting(**choices)

    def episodes(
        self, data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
    ) -> Sequence[Episode]:
        return load_episodes(data, split, stream, seed, limit)

    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """For worked examples."""
        return load_episodes(data, "train", stream, seed, limit)

    def recorded(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> AlfworldSetting:
        raise ConfigError("ALFWorld's games are a test: rollouts to learn from are recorded in ALFRED's houses")

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        """A game is worded once."""
        return task.instruction

    def asked_for(self, task: Task) -> str:
        raise ConfigError("ALFWorld's games are a test: what their tasks ask for is not for training")

    def label(self, env: Mapping[str, Any]) -> str:
        return "ALFWorld's TextWorld engine"


WORLD = Alfworld()
