"""The gymnasium environment over symbolic ALFRED."""

from __future__ import annotations

from collections.abc import Sequence

from envs.alfred.goals import Matching
from envs.alfred.knowledge import Observability
from envs.alfred.scene import Episode
from envs.alfred.setting import AlfredSetting
from envs.household import HouseholdEnv


class AlfredEnv(HouseholdEnv[Episode]):
    """Between the tasks of a stream only what counts as heated, cooled or cleaned starts anew."""

    def __init__(
        self,
        data: str | None = None,
        split: str = "test",
        skills: str = "lota",
        observability: Observability = "full",
        goal_matching: Matching = "type",
        max_steps: int | None = None,
        stream: int = 1,
        episodes: Sequence[Episode] | None = None,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """``episodes`` replaces ``data``, ``split``, ``stream`` and ``seed``. Raises ConfigError for bad choices."""
        setting = AlfredSetting(skills, observability, goal_matching, max_steps)
        super().__init__(setting, _load(data, split, stream, seed) if episodes is None else episodes, render_mode)


def _load(data: str | None, split: str, stream: int, seed: int) -> Sequence[Episode]:
    from envs.alfred.episodes import load_episodes  # here: reading data is no part of stepping a given episode

    return load_episodes(data, split, stream=stream, seed=seed)
