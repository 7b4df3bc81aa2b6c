"""ALFWorld's spec: its games are played, never learnt from."""

from __future__ import annotations

from envs.alfworld.episodes import load_episodes
from envs.alfworld.setting import AlfworldSetting
from envs.world_spec import WorldSpec

SPEC = WorldSpec("ALFWorld's TextWorld engine", AlfworldSetting, load_episodes)
