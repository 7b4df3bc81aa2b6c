"""Single plans, for robots that carry out skills by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from envs.outcome import DONE as WELL
from envs.outcome import failed
from keep_agent.loop import DONE
from keep_agent.robots.errors import RobotError
from keep_agent.robots.talk import Talk

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.api import Decision, Planning
    from keep_agent.robots.unseen import Unseen


class PlanDesk:
    """What was asked for belongs together as long as its instruction stays the same. Calls come one at a time.

    A decision that nobody reported on when the next is asked for counts as carried out well; "done" as the task's end.
    """

    def __init__(self, planner: Planning, unseen: Unseen) -> None:
        self.planner, self.unseen = planner, unseen
        self._talk: Talk | None = None

    @property
    def open(self) -> bool:
        """Whether there is a decision to report on."""
        return self._talk is not None and self._talk.open

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        """The next of ``skills``. Raises what the planner raises."""
        talk = self._talk
        if talk is not None and talk.open:
            talk.report(WELL)
        if talk is None or talk.instruction != instruction:
            talk = self._talk = Talk(self.planner, instruction)
        self.unseen.tell(talk)
        decision = talk.plan(skills)
        if decision.skill == DONE:
            talk.report(WELL)
            self._forget(talk)
        return decision

    def report(self, outcome: Outcome) -> None:
        """What became of the last plan."""
        talk = self._talk
        if talk is None or not talk.open:
            raise RobotError("there is no plan to report on: ask for one first, and report once")
        talk.report(outcome)

    def leave(self, why: str) -> Callable[[], None] | None:
        """Nothing of this goes on. Returns what tells the planner so, and may block; None if nothing is to be told."""
        talk, self._talk = self._talk, None
        return None if talk is None else partial(talk.end, failed(why))

    def _forget(self, talk: Talk) -> None:
        if self._talk is talk:
            self._talk = None
