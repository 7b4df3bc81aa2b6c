"""The gymnasium environment over ALFWorld's games."""

from __future__ import annotations

from collections.abc import Sequence

from envs.alfworld.episodes import load_episodes
from envs.alfworld.scene import Episode
from envs.alfworld.setting import AlfworldSetting, Scored
from envs.household import HouseholdEnv
from envs.setting import Observability
from keep_agent.errors import ConfigError


class AlfworldEnv(HouseholdEnv[Episode]):
    """Tasks of ALFWorld in its own TextWorld engine. Needs the extra ``alfworld``."""

    def __init__(
        self,
        data: str | None = None,
        split: str = "valid_seen",
        skills: str = "grounded",
        observability: Observability = "partial",
        scored: Scored = "final",
        max_steps: int | None = None,
        stream: int = 1,
        episodes: Sequence[Episode] | None = None,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """``episodes`` replaces ``data``, ``split`` and ``seed``. Raises ConfigError for bad choices, and where the
        engine is not installed.
        """
        setting = AlfworldSetting(skills, observability, scored, max_steps)
        if observability != "partial":
            raise ConfigError(f"env.observability={observability}, but ALFWorld's text tells what is seen; use partial")
        setting.engines.give_back(setting.engines.take())  # is it there at all?
        found = load_episodes(data, split, stream, seed) if episodes is None else episodes
        super().__init__(setting, found, render_mode)
