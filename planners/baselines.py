"""Two planners without a model: the scripted oracle as a ceiling, and chance as a floor."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planners.base import Decision, Finished

if TYPE_CHECKING:
    from planners.prompts.styles import FactView


class _Forgetful:
    """A planner that needs no memory of its own."""

    weights = None

    def reset(self, instruction: str, skills: str) -> None:
        """Nothing to forget."""

    def observe(self, facts: Sequence[FactView]) -> None:
        """Facts are not looked at."""

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """Nothing is learned."""

    def finish_task(self, result: Finished, following: str | None) -> None:
        """Nothing is remembered."""

    def close(self) -> None:
        """Nothing is held."""


class ExpertPlanner(_Forgetful):
    """Does what a scripted oracle says, which reads the world's state from ``info``."""

    name = "expert"

    def __init__(self, oracle: Callable[[Mapping[str, Any]], str]) -> None:
        self._oracle = oracle

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self._oracle(info))


class RandomPlanner(_Forgetful):
    """A uniform choice that depends only on seed, episode and step, so that a resumed run is the same run."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        place = f"{self.seed}/{info['episode_id']}/{info['task_index']}/{info['step']}"
        return Decision(random.Random(place).choice(list(admissible)))
