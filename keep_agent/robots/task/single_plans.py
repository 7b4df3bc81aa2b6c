"""Single plans, for robots that carry out skills by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from envs.outcome import DONE as WELL
from envs.outcome import failed
from keep_agent.robots.errors import RobotError
from keep_agent.robots.task.dialogue import Dialogue
from planners.base import DONE

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision, Planning
    from keep_agent.robots.task.pending_facts import PendingFacts


class SinglePlans:
    """What was asked for belongs together as long as its instruction stays the same. Calls come one at a time.

    A decision that nobody reported on when the next is asked for counts as carried out well; "done" as the task's end.
    """

    def __init__(self, planner: Planning, pending: PendingFacts) -> None:
        self.planner, self.pending = planner, pending
        self._dialogue: Dialogue | None = None

    def asked(self, instruction: str, skills: Sequence[str]) -> Callable[[], Decision]:
        """Asks the planner for the next of ``skills``, and raises what it raises; RobotError after `leave`."""
        before = self._dialogue
        if before is None or before.instruction != instruction:
            self._dialogue = Dialogue(self.planner, instruction)
        return partial(self._ask, before, self._dialogue, skills)

    def _ask(self, before: Dialogue | None, dialogue: Dialogue, skills: Sequence[str]) -> Decision:
        if before is not None and before is not dialogue:
            before.end(WELL)
        elif dialogue.open:
            dialogue.report(WELL)
        self.pending.tell(dialogue)
        decision = dialogue.plan(skills)
        if decision.skill == DONE:
            dialogue.report(WELL)
            self._forget(dialogue)
        return decision

    def reported(self, outcome: Outcome) -> Callable[[], None]:
        """Tells the planner what became of the last plan. Raises RobotError if there is none."""
        dialogue = self._dialogue
        if dialogue is None or not dialogue.open:
            raise RobotError("there is no plan to report on: ask for one first, and report once")
        return partial(dialogue.report, outcome)

    def leave(self, why: str) -> Callable[[], None] | None:
        """Nothing of this goes on. Returns what tells the planner so, and may block; None if nothing is to be told."""
        dialogue, self._dialogue = self._dialogue, None
        return None if dialogue is None else partial(dialogue.end, failed(why))

    def _forget(self, dialogue: Dialogue) -> None:
        if self._dialogue is dialogue:
            self._dialogue = None
