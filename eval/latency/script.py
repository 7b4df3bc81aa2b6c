"""What contenders are made to do: scripts of steps, written before anything is timed, the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planners.base import Finished
from planners.prompts.styles import Edit


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of an episode, and what becomes of it. ``skill`` is executed, whatever a planner decides."""

    edits: tuple[Edit, ...]  # segments that changed since the last step
    admissible: tuple[str, ...]
    skill: str
    ok: bool = True
    message: str = ""
    finished: Finished | None = None  # the task that ended with this step
    following: str | None = None  # then, the next instruction in the same house


@dataclass(frozen=True, slots=True)
class Script:
    """One episode. ``aged`` segments have been in memory for ``age`` steps when it begins: they are static."""

    instruction: str
    skills: str  # name of the skill set
    steps: tuple[Step, ...]
    aged: tuple[Edit, ...] = ()
    age: int = 0

    def first(self, count: int) -> Script:
        """The same episode, ended early."""
        return replace(self, steps=self.steps[:count])


def sample_candidates(admissible: Sequence[str], skill: str, count: int | None) -> tuple[str, ...]:
    """``count`` of the candidates, evenly spread, the executed ``skill`` among them; all, if ``count`` is None."""
    if count is None or count >= len(admissible):
        return tuple(admissible)
    others = [candidate for candidate in admissible if candidate != skill]
    return (skill, *(others[number * len(others) // (count - 1)] for number in range(count - 1)))
