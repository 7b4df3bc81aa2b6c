"""Scripts of steps that all contenders execute, written before the timing starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planners.base import TaskResult
from planners.prompts.text import Edit


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of an episode and its outcome. ``skill`` is executed whatever a planner decides."""

    edits: tuple[Edit, ...]  # segments that changed since the last step
    admissible: tuple[str, ...]
    skill: str
    ok: bool = True
    message: str = ""
    finished: TaskResult | None = None  # the task that ended with this step
    following: str | None = None  # the next instruction in the same house, if a task ended


@dataclass(frozen=True, slots=True)
class Script:
    """One episode. Its ``aged`` segments have been in memory for ``age`` steps at the start, so they are static."""

    instruction: str
    skills: str  # name of the skill set
    steps: tuple[Step, ...]
    aged: tuple[Edit, ...] = ()
    age: int = 0

    def first(self, count: int) -> Script:
        """Return the episode with its first ``count`` steps."""
        return replace(self, steps=self.steps[:count])


def sample_candidates(admissible: Sequence[str], skill: str, count: int | None) -> tuple[str, ...]:
    """Return ``count`` evenly spread candidates including the executed ``skill``; all if ``count`` is None."""
    if count is None or count >= len(admissible):
        return tuple(admissible)
    alternatives = [candidate for candidate in admissible if candidate != skill]
    return (skill, *(alternatives[number * len(alternatives) // (count - 1)] for number in range(count - 1)))
