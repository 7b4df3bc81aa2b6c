"""A world with a picture of every moment, and a simulator that has to be restarted now and then."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium
import numpy as np

SIZE = (6, 8, 3)


def picture(step: int) -> np.ndarray:
    """What is shown after so many steps: one colour, which tells the number."""
    return np.full(SIZE, step, np.uint8)


class Pictured(gymnasium.Wrapper):
    """Any world with pictures. ``restarts`` are the steps at which its simulator goes down, 0 the reset."""

    def __init__(self, env: gymnasium.Env, restarts: Collection[int] = (), notes: Any = None) -> None:
        super().__init__(env)
        self._at, self._notes, self._steps = restarts, notes, 0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        observation, info = self.env.reset(**given)
        return self._seen(observation), self._told(info) | {"notes": self._notes}

    def step(self, action: str) -> tuple[Any, ...]:
        self._steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(observation), reward, terminated, truncated, self._told(info)

    def _seen(self, observation: dict[str, Any]) -> dict[str, Any]:
        return observation | {"frame": picture(self._steps)}

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        return info | {"restarts": sum(step <= self._steps for step in self._at)}
