"""Baseline planners without a model: the scripted oracle as an upper bound and random choice as a lower bound."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planners.base import Decision, TaskResult

if TYPE_CHECKING:
    from planners.prompts.styles import FactView


class _Memoryless:
    """A planner that keeps nothing between decisions."""

    weights = None

    def reset(self, instruction: str, skills: str) -> None:
        """Keep nothing."""

    def observe(self, facts: Sequence[FactView]) -> None:
        """Keep nothing."""

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """Keep nothing."""

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Keep nothing."""


class ExpertPlanner(_Memoryless):
    """A planner that follows a scripted oracle, which reads the world's state from ``info``."""

    name = "expert"

    def __init__(self, oracle: Callable[[Mapping[str, Any]], str]) -> None:
        self._oracle = oracle

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self._oracle(info))


class RandomPlanner(_Memoryless):
    """A uniform choice that depends only on seed, episode and step, so that a resumed run repeats it."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        step = f"{self.seed}/{info['episode_id']}/{info['task_index']}/{info['step']}"
        return Decision(random.Random(step).choice(list(admissible)))
