"""What a robot says to its planner and what it hears: the same words for an agent here and one behind a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from planners.prompts.styles import FactView


Ready = Callable[[dict[str, Any]], None]  # takes what a prompt cost, when it is ready and the choice begins


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next. ``number`` counts an agent's decisions from 1."""

    skill: str
    scores: tuple[tuple[str, float], ...] = ()  # the best candidates with their log-likelihoods, best first
    trace: Mapping[str, Any] = field(default_factory=dict)  # how the prompt came about, fit for JSON: docs/api.md
    number: int = 0
    warnings: tuple[str, ...] = ()  # what the plan lacked, in a sentence each


class Planning(Protocol):
    """One robot's planner, here or behind a server."""

    def observe(self, facts: Iterable[FactView]) -> None:
        """Facts that are new or different since the last call; also while a skill is carried out."""
        ...

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        """Choose the next of ``skills``. Another instruction than before begins another task."""
        ...

    def report(self, outcome: Outcome) -> None:
        """What became of the last decision."""
        ...

    def finish(self, success: bool) -> None:
        """The task has ended, well or not."""
        ...
