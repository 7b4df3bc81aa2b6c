"""Watch-And-Help's spec."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from envs.setting import Observability
from envs.wah.episodes import load_episodes
from envs.wah.goals import asked_for, goal_of
from envs.wah.language.phrases import phrase
from envs.wah.scene import TASK_TYPES, Episode, Task
from envs.wah.setting import WahSetting
from envs.world_spec import WorldSpec

STRICT = 0.4  # share of the other training episodes


class WatchAndHelpSpec(WorldSpec):
    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """Embedded ones, whatever is played: files of Watch-And-Help are not for training."""
        return load_episodes(None, "train", stream, seed, limit, most=2, types=TASK_TYPES)

    def recorded(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> WahSetting:
        """Both rules; where two of a class are asked for the strict one, since the other knows the last one only."""
        several = any(count > 1 for task in episode.tasks for _, count in task.goal)
        strict = several or rng.random() < STRICT
        return WahSetting(skills, observability, "strict" if strict else "lota")

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        return phrase(task.type, task.goal, rng)

    def goal_text(self, task: Task) -> str:
        return asked_for(goal_of(task))


SPEC = WatchAndHelpSpec(
    "WatchAndHelp-v0", WahSetting, load_episodes, simulator_choices=("simulator", "record"), learns_from_files=False
)
