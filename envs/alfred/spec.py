"""Specification of ALFRED for the registry of environments (`WorldSpec`), and the loader of its episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from envs.alfred.language.lessons import goal_words
from envs.alfred.language.phrases import phrase
from envs.alfred.scene import Episode, Task
from envs.alfred.setting import AlfredSetting
from envs.alfred.thor.options import thor_options
from envs.setting import Observability
from envs.splits import LazyEpisodes, check_request, episode_indices
from envs.worlds import WorldSpec


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
) -> Sequence[Episode]:
    """Return the episodes of a split; ``data`` is a folder json_2.1.0 (official data), or None for generated houses.

    A generated house has ``stream`` tasks. There are ``limit`` houses (10,000 by default); another ``seed`` gives other
    houses of the split. In official data, each person's description of a trial is one episode; ``limit`` of them are
    drawn with ``seed``. Raises ConfigError for settings that cannot work, DataError for missing or damaged files.
    """
    check_request(data, stream, limit, "house")
    if data is None:
        return LazyEpisodes(partial(_house, split, stream), episode_indices(split, seed, limit, "house"))
    from envs.alfred.data.official import load_official  # lazy, as below: each source loads only its own modules

    return load_official(data, split, seed, limit)


def _house(split: str, stream: int, index: int) -> Episode:
    from envs.alfred.houses.generator import generate_episode, house_seed

    return generate_episode(house_seed(split, index), stream)


class AlfredSpec(WorldSpec):
    def play_setting(self, skills: str, observability: Observability, episode: Episode, rng: Random) -> AlfredSetting:
        return AlfredSetting(skills, observability)

    def reword(self, episode: Episode, task: Task, rng: Random) -> str:
        """Return another wording of the instruction. It avoids names that also fit another type in the room."""
        return phrase(task, rng, frozenset(item.type for item in episode.scene.items))

    def goal_text(self, task: Task) -> str:
        return goal_words(task)

    def label(self, env: Mapping[str, Any]) -> str:
        """Return the title of results. It names AI2-THOR 5 if that is used: ALFRED's own results are on version 2.1."""
        if env.get("backend", "symbolic") == "symbolic":
            return self.title
        is_stand_in = thor_options(env.get("thor"), embedded=env.get("data") is None).is_stand_in
        return f"ALFRED tasks on {'a stand-in for ' if is_stand_in else ''}AI2-THOR 5"


SPEC = AlfredSpec("Alfred-v0", AlfredSetting, load_episodes, ("backend", "render", "thor", "data"))
