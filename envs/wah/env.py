"""The gymnasium environment over Watch-And-Help."""

from __future__ import annotations

from collections.abc import Sequence

from envs.household import HouseholdEnv
from envs.setting import Observability
from envs.wah.checks import Rules
from envs.wah.episodes import load_episodes
from envs.wah.lota import Messages
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting


class WatchAndHelpEnv(HouseholdEnv[Episode]):
    """Tasks of Watch-And-Help in VirtualHome's apartments, without a simulator or with one."""

    def __init__(
        self,
        data: str | None = None,
        split: str = "test",
        skills: str = "lota",
        observability: Observability = "full",
        rules: Rules = "lota",
        messages: Messages = "reasons",
        max_steps: int | None = None,
        stream: int = 1,
        episodes: Sequence[Episode] | None = None,
        seed: int = 0,
        simulator: str | None = None,
        record: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        """``episodes`` replaces ``data``, ``split``, ``stream`` and ``seed``. Raises ConfigError for bad choices,
        SimulatorError for a simulator that does not answer.
        """
        setting = WahSetting(skills, observability, rules, messages, max_steps, simulator, record)
        found = load_episodes(data, split, stream, seed) if episodes is None else episodes
        super().__init__(setting, found, render_mode)
        setting.connect()
