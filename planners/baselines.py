"""Baseline planners without model and memory: the scripted oracle as an upper bound, random choice as a lower bound."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planners.base import Decision, Planner


class ExpertPlanner(Planner):
    """A planner that follows a scripted oracle, which reads the world's state from ``info``."""

    name = "expert"

    def __init__(self, oracle: Callable[[Mapping[str, Any]], str]) -> None:
        self._oracle = oracle

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self._oracle(info))


class RandomPlanner(Planner):
    """A uniform choice that depends only on seed, episode and step, so that a resumed run repeats it."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        step = f"{self.seed}/{info['episode_id']}/{info['task_index']}/{info['step']}"
        return Decision(random.Random(step).choice(list(admissible)))
