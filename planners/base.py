"""What a planner is to the loop that drives it: a few calls and one frozen answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from memory.prompt.report import Prefill
    from planners.prompts.styles import FactView

POLICIES = ("score", "generate")  # of planners with a model
DONE = "done"  # the skill that ends a task in every skill set


@dataclass(frozen=True, slots=True)
class Decision:
    """The next skill, and what deciding cost. Planners without a model leave all but ``skill`` empty."""

    skill: str
    scores: tuple[tuple[str, float], ...] = ()  # the best candidates, best first
    prefill: Prefill | None = None  # what memory did for this step: rows, units, parts of the time
    score_ms: float = 0.0  # candidate scoring or decoding, after the logits of the last prompt row
    score_tokens: int = 0  # trie rows or decoded tokens, counted apart from the prompt
    extra: Mapping[str, Any] = field(default_factory=dict)  # planner's own JSON-able notes for the trace


@dataclass(frozen=True, slots=True)
class Finished:
    """How a task ended, as the agent remembers it."""

    instruction: str
    success: bool
    steps: int


class Planner(Protocol):
    """One agent's decisions: reset, then observe, decide, feedback in turns, and finish_task at a task's end."""

    name: str

    @property
    def weights(self) -> str | None:
        """A hash of its model's weights; None without a model."""
        ...

    def reset(self, instruction: str, skills: str) -> None:
        """A new episode in a new house: forget everything. ``skills`` is the skill set's name (lota | grounded)."""
        ...

    def observe(self, facts: Sequence[FactView]) -> None:
        """Facts that changed since the last call."""
        ...

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        """Choose one of ``admissible``; ``info`` is the world's (the scripted expert's oracle is in it)."""
        ...

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """What became of the skill. ``message`` says why it failed, where somebody knows; it may be empty."""
        ...

    def finish_task(self, result: Finished, following: str | None) -> None:
        """A task ended; in a stream ``following`` is the next instruction in the same house, else None."""
        ...

    def close(self) -> None:
        """Let go of models and threads; no call comes after this."""
        ...
