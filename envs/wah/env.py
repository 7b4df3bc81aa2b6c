"""Gymnasium environment of Watch-And-Help."""

from __future__ import annotations

from typing import Any

from envs.household import WorldEnv
from envs.wah.scene import Episode
from envs.wah.spec import SPEC


class WatchAndHelpEnv(WorldEnv[Episode]):
    """Tasks of Watch-And-Help in VirtualHome's apartments, with or without a simulator.

    Options are those of `WorldEnv` and `WahSetting`. Raises SimulatorError for a simulator that does not answer.
    """

    spec_of_world = SPEC

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.setting.connect()
