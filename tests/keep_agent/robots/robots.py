"""Robots and planners that do what a test says, and keep what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread, current_thread
from typing import Any, TypeVar

import pytest

from envs.fact import Fact
from envs.outcome import Outcome, failed
from keep_agent.agent.types import Decision
from keep_agent.robots import Limits, RobotSession, TaskReport
from keep_agent.robots.service import RobotService
from keep_agent.robots.task.bounded_call import Call
from tests.waiting import PATIENCE

T = TypeVar("T")
WAIT = PATIENCE


@dataclass
class ScriptPlanner:
    """Decides what its script says, then "done". Notes every call, and whether two of them overlapped."""

    script: Sequence[str | Exception | Callable[[], str]] = ()
    calls: list[tuple] = field(default_factory=list)
    overlaps: int = 0
    returned: int = 0  # decisions that it made
    _working: list[str] = field(default_factory=list)
    _decided: int = 0

    def _enter(self, *call: object) -> None:
        self.overlaps += bool(self._working)
        self._working.append(current_thread().name)
        self.calls.append(call)

    def observe(self, facts: Iterable[Fact]) -> None:
        self._enter("observe", tuple(facts))
        self._working.pop()

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        self._enter("plan", instruction, tuple(skills))
        try:
            choice = self.script[self._decided] if self._decided < len(self.script) else "done"
            self._decided += 1
            if isinstance(choice, Exception):
                raise choice
            decision = Decision(choice() if callable(choice) else choice, number=self._decided)
            self.returned += 1
            return decision
        finally:
            self._working.pop()

    def report(self, outcome: Outcome) -> None:
        self._enter("report", outcome)
        self._working.pop()

    def finish(self, success: bool) -> None:
        self._enter("finish", success)
        self._working.pop()

    def named(self, name: str) -> list[tuple]:
        return [call[1:] for call in self.calls if call[0] == name]


@dataclass
class ScriptRobot:
    """``deeds`` says what a skill does; others work at once. `begun` and `cancelled` tell a test how far it is."""

    names: Sequence[str] = ("wave", "nod")
    deeds: dict[str, Callable[[ScriptRobot], Outcome]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    running: int = 0
    executed: list[str] = field(default_factory=list)
    begun: Event = field(default_factory=Event)
    cancelled: Event = field(default_factory=Event)
    release: Event = field(default_factory=Event)  # lets go of what hangs

    def skills(self) -> Sequence[str]:
        return self.names

    def observe(self) -> Iterable[Fact]:
        seen, self.facts = self.facts, []
        return seen

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        self.running += 1
        self.executed.append(skill)
        self.cancelled.clear()
        self.begun.set()
        try:
            feedback(f"{skill} begins")
            return self.deeds.get(skill, lambda robot: Outcome(True))(self)
        finally:
            self.running -= 1

    def cancel(self) -> None:
        self.cancelled.set()


def until_cancelled(robot: ScriptRobot) -> Outcome:
    assert robot.cancelled.wait(WAIT)
    return failed("cancelled")


def until_released(robot: ScriptRobot) -> Outcome:
    """Does not care about being cancelled."""
    assert robot.release.wait(WAIT)
    return failed("let go at last")


def fact(number: int) -> Fact:
    return Fact(f"mug_{number}", "object", "mug", place="table_1")


QUICK = Limits(skill=WAIT, task=WAIT, answer=WAIT, cancel=WAIT, period=0.01)


def limits(**seconds: float) -> Limits:
    return Limits(**{name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | seconds)


def change(limits: Limits, **seconds: float) -> None:
    """For the task as well that is on with these limits."""
    for name, value in seconds.items():
        object.__setattr__(limits, name, value)


@contextmanager
def limited(*names: str, hangs: Event) -> Iterator[None]:
    """Limits hold for calls of these ``names`` alone, and only when ``hangs`` says that the test has come so far.

    A limit of a session is for many calls, and those that a test wants answered may take as long as they need.
    """
    wait = Call.wait

    def patient(call: Call[Any], seconds: float, *others: Future[Any]) -> bool:
        if call.name in names:
            assert hangs.wait(WAIT)
            return wait(call, seconds, *others)
        return wait(call, WAIT, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "wait", patient)
        yield


def thinking() -> tuple[ScriptPlanner, Event, Event]:
    """A planner that thinks until it gets its answer; it was asked, and the answer is there."""
    asked, answer = Event(), Event()

    def think() -> str:
        asked.set()
        return str(answer.wait(WAIT))

    return ScriptPlanner([think]), asked, answer


def later(call: Callable[[], T]) -> Future[T]:
    """What a call gives that is made beside the test."""
    future: Future[T] = Future()
    Thread(target=lambda: future.set_result(call()), daemon=True).start()
    return future


def scripted(
    script: Sequence[str] = (), limits: Limits = QUICK, facts: Sequence[Fact] = (), **deeds: Callable[..., Outcome]
) -> tuple[RobotSession, ScriptPlanner, ScriptRobot]:
    """A session of a planner and a robot with what they do."""
    planner, robot = ScriptPlanner(script), ScriptRobot(deeds=deeds, facts=[*facts])
    return RobotSession(planner, robot, limits=limits), planner, robot


def greeted(script: Sequence[str], **choices: Any) -> tuple[TaskReport, ScriptPlanner, ScriptRobot]:
    """The end of a task of `scripted`."""
    session, planner, robot = scripted(script, **choices)
    return session.run("greet"), planner, robot


def offered(script: Sequence[Any], **choices: Any) -> tuple[RobotService, ScriptPlanner]:
    """The same planner and robot as a service."""
    session, planner, robot = scripted(script, **choices)
    return RobotService(planner, robot, limits=session.limits), planner


def in_background(session: RobotSession, instruction: str = "do it") -> Future[TaskReport]:
    return later(partial(session.run, instruction))
