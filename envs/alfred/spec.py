"""ALFRED's spec."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from envs.alfred.episodes import load_episodes
from envs.alfred.language.lessons import asked_for
from envs.alfred.language.phrases import phrase
from envs.alfred.scene import Episode, Task
from envs.alfred.setting import AlfredSetting
from envs.alfred.thor.options import thor_options
from envs.setting import Observability
from envs.world_spec import WorldSpec


class AlfredSpec(WorldSpec):
    def recorded(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> AlfredSetting:
        return AlfredSetting(skills, observability)

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        """Without names that mean something else in this room."""
        return phrase(task, rng, frozenset(item.type for item in episode.scene.items))

    def goal_text(self, task: Task) -> str:
        return asked_for(task)

    def label(self, env: Mapping[str, Any]) -> str:
        """Results in AI2-THOR 5 are not to be compared with those in 2.1, which ALFRED was recorded in."""
        if env.get("backend", "symbolic") == "symbolic":
            return self.title
        stands_in = thor_options(env.get("thor"), embedded=env.get("data") is None).stands_in
        return f"ALFRED tasks on {'a stand-in for ' if stands_in else ''}AI2-THOR 5"


SPEC = AlfredSpec("Alfred-v0", AlfredSetting, load_episodes, ("backend", "render", "thor", "data"))
