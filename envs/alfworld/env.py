"""Gymnasium environment of ALFWorld's games."""

from __future__ import annotations

from typing import Any

from envs.alfworld.scene import Episode
from envs.alfworld.setting import AlfworldSetting
from envs.alfworld.spec import SPEC
from envs.household import WorldEnv
from keep_agent.errors import ConfigError


class AlfworldEnv(WorldEnv[Episode]):
    """Tasks of ALFWorld in its own engine, with the arguments of `WorldEnv` and the options of `AlfworldSetting`."""

    spec_of_world = SPEC
    default_split = "valid_seen"

    def make_setting(self, **choices: Any) -> AlfworldSetting:
        setting: AlfworldSetting = super().make_setting(**choices)
        if (known := setting.observability) != "partial":
            raise ConfigError(f"env.observability={known}, but ALFWorld's text shows only what is seen; use partial")
        setting.engines.release(setting.engines.acquire())  # fails early if the engine is not installed
        return setting
