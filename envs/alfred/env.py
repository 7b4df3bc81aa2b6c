"""The gymnasium environment over symbolic ALFRED."""

from __future__ import annotations

from collections.abc import Sequence

from envs.alfred.episodes import load_episodes
from envs.alfred.goals import Matching
from envs.alfred.scene import Episode
from envs.alfred.setting import AlfredSetting
from envs.household import HouseholdEnv
from envs.setting import Observability


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
        found = load_episodes(data, split, stream, seed) if episodes is None else episodes
        super().__init__(setting, found, render_mode)
