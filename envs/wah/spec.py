"""Spec of Watch-And-Help, and the loader of its episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from envs.setting import Observability
from envs.splits import LazyEpisodes, check_request, episode_indices
from envs.wah.goals import goal_of, goal_words
from envs.wah.language.phrases import phrase
from envs.wah.scene import TASK_TYPES, Episode, Task
from envs.wah.setting import WahSetting
from envs.worlds import WorldSpec


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None, **tasks: Any
) -> Sequence[Episode]:
    """Load the episodes of a split; ``data`` is a file or folder of tasks, or None for generated apartments.

    Generated: ``limit`` apartments (default 10,000) with ``stream`` tasks each. Each ``seed`` has its own apartments;
    ``tasks`` are arguments of `generate_episode`. From files: one episode per instruction; with ``limit``, a sample of
    this size drawn with ``seed``. Raises ConfigError for invalid settings, DataError for damaged files.
    """
    check_request(data, stream, limit, "apartment")
    if data is None:
        return LazyEpisodes(partial(_apartment, split, stream, tasks), episode_indices(split, seed, limit, "apartment"))
    from envs.wah.data.official import load_official  # lazy: only the source in use is imported

    return load_official(data, split, seed, limit)


def _apartment(split: str, stream: int, tasks: Mapping[str, Any], index: int) -> Episode:
    from envs.wah.apartments.episodes import generate_episode
    from envs.wah.apartments.generator import apartment_seed

    return generate_episode(apartment_seed(split, index), stream, **tasks)


STRICT = 0.4  # probability of the rules ``strict`` if both ``strict`` and ``lota`` can reach the goals


class WatchAndHelpSpec(WorldSpec):
    def training(self, data: str | None, stream: int = 1, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
        """Load generated episodes, since Watch-And-Help's files are for tests only."""
        return load_episodes(None, "train", stream, seed, limit, most=2, types=TASK_TYPES)

    def play_setting(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> WahSetting:
        """Draw the rules. Goals with several things of a class get ``strict``: ``lota`` finds only the last thing."""
        several = any(count > 1 for task in episode.tasks for _, count in task.goal)
        strict = several or rng.random() < STRICT
        return WahSetting(skills, observability, "strict" if strict else "lota")

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        return phrase(task.type, task.goal, rng)

    def goal_text(self, task: Task) -> str:
        return goal_words(goal_of(task))


SPEC = WatchAndHelpSpec(
    "WatchAndHelp-v0", WahSetting, load_episodes, simulator_choices=("simulator", "record"), learns_from_files=False
)
