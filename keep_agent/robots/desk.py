"""Single plans, for robots that carry out skills by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from envs.outcome import DONE as WELL
from envs.outcome import Outcome, failed
from keep_agent.loop import DONE
from keep_agent.robots.calls import Call
from keep_agent.robots.errors import RobotError, RobotTimeout
from keep_agent.robots.talk import Talk

if TYPE_CHECKING:
    from keep_agent.api import Planning
    from planners.styles import FactView

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """``ok``: whether it worked; ``report`` says why not."""

    ok: bool
    report: str = ""
    skill: str = ""


class PlanDesk:
    """One call at a time, each bounded by ``limit`` seconds.

    A decision that nobody reported on when the next is asked for counts as carried out well; "done" as the task's end.
    """

    def __init__(self, planner: Planning, limit: float) -> None:
        self.planner, self.limit = planner, limit
        self._talk: Talk | None = None
        self._last: Call | None = None  # the call that may still be at work
        self._open = False

    def plan(self, instruction: str, skills: Sequence[str], facts: Sequence[FactView] = ()) -> Answer:
        """The next of ``skills``, when these facts are known as well. Never raises: the answer says what went wrong."""
        try:
            if not instruction.strip() or not skills:
                raise RobotError(f"a plan needs an instruction and skills, not {instruction!r} and {list(skills)}")
            return Answer(True, skill=self._bounded(partial(self._plan, instruction, tuple(skills), facts)))
        except Exception as error:
            return Answer(False, f"{type(error).__name__}: {error}")

    def report(self, ok: bool, message: str) -> Answer:
        """What became of the last plan."""
        try:
            if not self._open:
                raise RobotError("there is no plan to report on: ask for one first, and report once")
            self._bounded(partial(self._report, Outcome(ok, message)))
        except Exception as error:
            return Answer(False, f"{type(error).__name__}: {error}")
        return Answer(True)

    def leave(self) -> None:
        """Something else begins: what is on here is over. Raises RobotTimeout if the planner does not take it in."""
        talk, self._talk = self._talk, None
        if talk is not None:
            self._open = False
            self._bounded(partial(talk.end, failed("something else was begun")))

    def _plan(self, instruction: str, skills: Sequence[str], facts: Sequence[FactView]) -> str:
        if self._open:
            self._report(WELL)
        if self._talk is None or self._talk.instruction != instruction:
            self._talk = Talk(self.planner, instruction)
        if facts:
            self._talk.observe(facts)
        decision = self._talk.plan(skills)
        self._open = True
        if decision.skill == DONE:
            self._report(WELL)
            self._talk = None
        return decision.skill

    def _report(self, outcome: Outcome) -> None:
        self._open = False
        if self._talk is not None:
            self._talk.report(outcome)

    def _bounded(self, function: Callable[[], T]) -> T:
        """Raises RobotTimeout; then the task is over for the planner as soon as it answers."""
        if self._last is not None and not self._last.wait(0):
            raise RobotTimeout(f"the planner is still busy with an earlier {self._last.name}; try later")
        self._last = call = Call("call", function)
        if not call.wait(self.limit):
            self._give_up()
            raise RobotTimeout(f"the planner did not answer within {self.limit:g} s")
        return call.result

    def _give_up(self) -> None:
        talk, self._talk, self._open = self._talk, None, False
        if talk is not None:
            Call("end", partial(talk.end, failed("the answer came too late")))
