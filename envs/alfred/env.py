"""Gymnasium environment of ALFRED, symbolic or in AI2-THOR."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envs.alfred.scene import Episode
from envs.alfred.spec import SPEC
from envs.household import WorldEnv
from envs.outcome import Outcome
from envs.setting import TaskResult


class AlfredEnv(WorldEnv[Episode]):
    """Environment of ALFRED. Its options are those of `WorldEnv` and of `AlfredSetting`; both have ``data``.

    With ``backend="thor"`` the environment starts an AI2-THOR process, which `close` ends. With
    ``render="rgb"`` observations have a ``frame``: the agent's view, (height, width, 3) uint8.
    """

    spec_of_world = SPEC
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own signature)

    def __init__(
        self, *arguments: Any, render_mode: str | None = None, render: str | None = None, **options: Any
    ) -> None:
        """Raises ThorError if the simulator does not start."""
        if render_mode == "rgb_array" and render is None:
            render = "rgb"
        super().__init__(*arguments, render_mode=render_mode, render=render, **options)
        self._frame_shape = self.setting.frame_shape
        if self._frame_shape is not None:
            frame = spaces.Box(0, 255, self._frame_shape, np.uint8)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "frame": frame})
        if self.setting.backend == "thor":
            self.setting.connect(self.episodes[0])

    def render(self) -> Any:
        """Return the agent's current view ("rgb_array"), or a short text ("ansi")."""
        return self._frame() if self.render_mode == "rgb_array" else super().render()

    def _frame(self) -> np.ndarray:
        frame = self.world.frame
        return np.zeros(self._frame_shape, np.uint8) if frame is None else np.ascontiguousarray(frame)

    def _observation(self, feedback: str) -> dict[str, Any]:
        observation: dict[str, Any] = super()._observation(feedback)
        return observation if self._frame_shape is None else observation | {"frame": self._frame()}

    def _info(self, outcome: Outcome, result: TaskResult | None) -> dict[str, Any]:
        """Add, with AI2-THOR, the number of ``restarts``, and ``notes``: how the initial room differs from ALFRED's."""
        info = super()._info(outcome, result)
        if self.setting.backend == "thor":
            report = self.world.restoration
            info |= {"restarts": self.world.restarts, "notes": report.notes() if report else {}}
        return info
