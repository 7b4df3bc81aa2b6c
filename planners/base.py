"""Protocol between the rollout loop and a planner, and two baselines without a model: expert and random."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from memory.prompt.report import Prefill
    from planners.prompts.styles import FactView


POLICIES = ("score", "generate")  # ways in which a planner with a model chooses a skill
DONE = "done"  # the skill that ends a task in every skill set


@dataclass(frozen=True, slots=True)
class Decision:
    """The next skill and the cost of deciding. Planners without a model leave all fields but ``skill`` empty."""

    skill: str
    scores: tuple[tuple[str, float], ...] = ()  # skill and score of the best candidates, best first
    prefill: Prefill | None = None  # report on this step's prompt: logits, cache, counts and timings
    score_ms: float = 0.0  # ms of generating the focus (the target's words) and choosing, after the prefill
    score_tokens: int = 0  # rows computed to score the candidates, plus decoded tokens; prompt rows do not count
    extra: Mapping[str, Any] = field(default_factory=dict)  # additional JSON values for the trace


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Outcome of a task as written to the memory."""

    instruction: str
    success: bool
    steps: int


class Planner(Protocol):
    """Planner of one agent. Order of calls: `reset`, then `observe`, `decide` and `feedback` at every step.

    `finish_task` follows the last step of each task. A subclass without a memory only needs `decide`.
    """

    name: str

    @property
    def weights(self) -> str | None:
        """Hash of the model's weights; None for a planner without a model."""

    def reset(self, instruction: str, skills: str) -> None:
        """Clear the memory and begin an episode in a new house. ``skills``: name of the skill set, lota or grounded."""

    def observe(self, facts: Sequence[FactView]) -> None:
        """Record the facts that have changed since the last call."""

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        """Choose one of the skills ``admissible``. ``info``: the environment's info, which only the baselines read."""

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        """Record the result of the executed skill. ``message``: reason of a failure; may be empty."""

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        """End a task. ``following``: the next instruction in the same house, None if there is none."""

    def close(self) -> None:
        """Release models and threads; the planner cannot be used afterwards."""


class ExpertPlanner(Planner):
    """Planner that follows the scripted expert, which reads the world's state from ``info``."""

    name = "expert"

    def __init__(self, oracle: Callable[[Mapping[str, Any]], str]) -> None:
        self._oracle = oracle

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self._oracle(info))


class RandomPlanner(Planner):
    """Planner that draws skills uniformly. Seed, episode, task and step determine the draw, also in a resumed run."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        step = f"{self.seed}/{info['episode_id']}/{info['task_index']}/{info['step']}"
        return Decision(random.Random(step).choice(list(admissible)))
