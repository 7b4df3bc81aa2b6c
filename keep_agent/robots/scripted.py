"""Scripted expert as a planner, to test a robot's connection without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envs.outcome import Outcome
from keep_agent.agent.types import Decision
from keep_agent.robots.symbolic import SymbolicExecutor
from planners.prompts.styles import FactView


class ScriptedPlanning:
    """Planner that solves the task of a symbolic world; it reads the world's state and ignores instructions."""

    def __init__(self, executor: SymbolicExecutor) -> None:
        self._executor = executor
        self._expert = executor.setting.expert()
        self._number = 0

    def observe(self, facts: Iterable[FactView]) -> None:
        """Ignore facts: the expert reads the world."""

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        robot = self._executor
        self._number += 1
        return Decision(self._expert.act(robot.world, robot.task, robot.knowledge), number=self._number)

    def report(self, outcome: Outcome) -> None:
        """Ignore the report."""

    def finish(self, success: bool) -> None:
        """Ignore the end."""
