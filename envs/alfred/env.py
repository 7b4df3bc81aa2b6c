"""The gymnasium environment over ALFRED, symbolic or in AI2-THOR."""

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
    """Tasks of ALFRED. Between those of a stream only the marks of what was heated, cooled or cleaned are forgotten.

    Options are those of `WorldEnv` and `AlfredSetting`; ``data`` goes to both.

    With ``backend="thor"`` a process of AI2-THOR is started at once and belongs to this environment: close it. With
    ``render="rgb"`` observations have a ``frame``, (height, width, 3) uint8, of what the agent sees.
    """

    spec_of_world = SPEC
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own signature)

    def __init__(
        self, *arguments: Any, render_mode: str | None = None, render: str | None = None, **options: Any
    ) -> None:
        """Raises ThorError for a simulator that does not come up."""
        if render_mode == "rgb_array" and render is None:
            render = "rgb"
        super().__init__(*arguments, render_mode=render_mode, render=render, **options)
        if self.setting.frame_shape is not None:
            frame = spaces.Box(0, 255, self.setting.frame_shape, np.uint8)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "frame": frame})
        if self.setting.backend == "thor":
            self.setting.connect(self.episodes[0])

    def render(self) -> Any:
        """Return the agent's current view ("rgb_array"), or a few lines of text ("ansi")."""
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
