"""The scripted expert as a planner: to try a robot's wiring without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from keep_agent.agent.types import Decision

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.robots.symbolic import SymbolicExecutor
    from planners.prompts.text import FactView


class ScriptedPlanning:
    """Does the task of a symbolic world whatever the instruction says: the expert reads the world's state."""

    def __init__(self, executor: SymbolicExecutor) -> None:
        self._executor = executor
        self._expert = executor.setting.expert()
        self._number = 0

    def observe(self, facts: Iterable[FactView]) -> None:
        """The world is looked at instead."""

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        robot = self._executor
        self._number += 1
        return Decision(self._expert.act(robot.world, robot.task, robot.knowledge), number=self._number)

    def report(self, outcome: Outcome) -> None:
        """Nothing is learned."""

    def finish(self, success: bool) -> None:
        """Nothing is remembered."""
