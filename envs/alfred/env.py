"""The gymnasium environment over ALFRED, symbolic or in AI2-THOR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.alfred.episodes import load_episodes
from envs.alfred.goals import Matching
from envs.alfred.scene import Episode
from envs.alfred.setting import AlfredSetting, Backend
from envs.household import HouseholdEnv
from envs.outcome import Outcome
from envs.setting import Observability, TaskResult


class AlfredEnv(HouseholdEnv[Episode]):
    """Between the tasks of a stream only what counts as heated, cooled or cleaned starts anew.

    With ``backend="thor"`` a process of AI2-THOR is started at once and belongs to this environment: close it. With
    ``render="rgb"`` observations have a ``frame``, (height, width, 3) uint8, of what the agent sees.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own signature)

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
        backend: Backend = "symbolic",
        render: str | None = None,
        thor: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """``episodes`` replaces ``split``, ``stream`` and ``seed``; ``thor`` are fields of `ThorOptions`.

        Raises ConfigError for bad choices, ThorError for a simulator that does not come up.
        """
        if render_mode == "rgb_array" and render is None:
            render = "rgb"
        setting = AlfredSetting(skills, observability, goal_matching, max_steps, backend, render, thor, data)
        found = load_episodes(data, split, stream, seed) if episodes is None else episodes
        super().__init__(setting, found, render_mode)
        if setting.frame_shape is not None:
            frame = spaces.Box(0, 255, setting.frame_shape, np.uint8)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "frame": frame})
        if backend == "thor":
            setting.connect(found[0])

    def render(self) -> Any:
        """What the agent sees now ("rgb_array"), or a few lines of text ("ansi")."""
        return self._frame() if self.render_mode == "rgb_array" else super().render()

    def _frame(self) -> np.ndarray:
        frame = self.world.frame
        return np.zeros(self.setting.frame_shape, np.uint8) if frame is None else np.ascontiguousarray(frame)

    def _observation(self, feedback: str) -> dict[str, Any]:
        seen = {} if self.setting.frame_shape is None else {"frame": self._frame()}
        return {**super()._observation(feedback), **seen}

    def _info(self, outcome: Outcome, result: TaskResult | None) -> dict[str, Any]:
        """``restarts`` counts how often the simulator had to be started anew in this episode; ``notes`` say what of an
        official start could not be had.
        """
        info = super()._info(outcome, result)
        if self.setting.backend == "thor":
            restored = self.world.restored
            info |= {"restarts": self.world.restarts, "notes": restored.notes() if restored else {}}
        return info
