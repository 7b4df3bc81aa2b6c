"""Wrapper that adds pictures, notes and simulator restarts to a world."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium
import numpy as np

SIZE = (6, 8, 3)


def picture(step: int) -> np.ndarray:
    """Return the picture after ``step`` steps: a colour that encodes the number."""
    return np.full(SIZE, step, np.uint8)


class Pictured(gymnasium.Wrapper):
    """World with pictures; its simulator restarts at the steps ``restarts``, 0 for the reset."""

    def __init__(self, env: gymnasium.Env, restarts: Collection[int] = (), notes: Any = None) -> None:
        super().__init__(env)
        self._at, self._notes, self._steps = restarts, notes, 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        observation, info = self.env.reset(**options)
        return self._with_frame(observation), self._with_restarts(info) | {"notes": self._notes}

    def step(self, action: str) -> tuple[Any, ...]:
        self._steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_frame(observation), reward, terminated, truncated, self._with_restarts(info)

    def _with_frame(self, observation: dict[str, Any]) -> dict[str, Any]:
        return observation | {"frame": picture(self._steps)}

    def _with_restarts(self, info: dict[str, Any]) -> dict[str, Any]:
        return info | {"restarts": sum(step <= self._steps for step in self._at)}
