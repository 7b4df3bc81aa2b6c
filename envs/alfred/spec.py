"""ALFRED, for those who serve any world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from envs.alfred.episodes import load_episodes
from envs.alfred.language.lessons import asked_for
from envs.alfred.language.phrases import phrase
from envs.alfred.scene import Episode, Task
from envs.alfred.setting import AlfredSetting
from envs.alfred.thor.options import thor_options
from envs.setting import Observability


class Alfred:
    name = "alfred"
    choices = ("skills", "observability", "goal_matching", "max_steps", "backend", "render", "thor", "data")
    learns_from_files = True

    def setting(self, **choices: Any) -> AlfredSetting:
        return AlfredSetting(**choices)

    def episodes(
        self, data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
    ) -> Sequence[Episode]:
        return load_episodes(data, split, stream, seed, limit)

    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        return load_episodes(data, "train", stream, seed, limit)

    def recorded(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> AlfredSetting:
        return AlfredSetting(skills, observability)

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        """Without names that mean something else in this room."""
        return phrase(task, rng, frozenset(item.type for item in episode.scene.items))

    def asked_for(self, task: Task) -> str:
        return asked_for(task)

    def label(self, env: Mapping[str, Any]) -> str:
        """Results in AI2-THOR 5 are not to be compared with those in 2.1, which ALFRED was recorded in."""
        if env.get("backend", "symbolic") == "symbolic":
            return "Alfred-v0"
        stands_in = thor_options(env.get("thor"), embedded=env.get("data") is None).stands_in
        return f"ALFRED tasks on {'a stand-in for ' if stands_in else ''}AI2-THOR 5"


WORLD = Alfred()
