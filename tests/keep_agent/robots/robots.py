"""Scripted planners and robots that record their calls, and sessions of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any, TypeVar

import pytest

from envs.fact import Fact
from envs.outcome import Outcome, failed
from keep_agent.agent.types import Decision
from keep_agent.robots import Limits, RobotSession, TaskReport
from keep_agent.robots.service import RobotService
from keep_agent.robots.task.bounded_call import BoundedCall
from tests.waiting import PATIENCE

T = TypeVar("T")
WAIT = PATIENCE
QUICK = Limits(skill=WAIT, task=WAIT, answer=WAIT, cancel=WAIT, period=0.01)


@dataclass
class Gate:
    """Function that blocks its caller until the test opens the gate."""

    result: Any = "wave"
    entered: Event = field(default_factory=Event)
    open: Event = field(default_factory=Event)

    def __call__(self, *_: object) -> Any:
        self.entered.set()
        assert self.open.wait(WAIT)
        return self.result


def fail(*_: object) -> None:
    raise ZeroDivisionError("broken")


@dataclass
class ScriptPlanner:
    """Planner that decides as ``script`` says, then "done". ``hooks`` run in calls of the method they name."""

    script: Sequence[str | Exception | Callable[[], str]] = ()
    hooks: dict[str, Callable[..., object]] = field(default_factory=dict)
    calls: list[tuple] = field(default_factory=list)
    overlaps: int = 0  # calls that began during another one
    decisions: int = 0  # decisions that `plan` returned
    _active: int = 0

    @contextmanager
    def _call(self, *call: Any) -> Iterator[None]:
        self.overlaps += self._active > 0
        self._active += 1
        self.calls.append(call)
        try:
            if call[0] in self.hooks:
                self.hooks[call[0]](*call[1:])
            yield
        finally:
            self._active -= 1

    def observe(self, facts: Iterable[Fact]) -> None:
        with self._call("observe", tuple(facts)):
            pass

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        with self._call("plan", instruction, tuple(skills)):
            number = self.count("plan")
            choice = self.script[number - 1] if number <= len(self.script) else "done"
            if isinstance(choice, Exception):
                raise choice
            decision = Decision(choice() if callable(choice) else choice, number=number)
            self.decisions += 1
            return decision

    def report(self, outcome: Outcome) -> None:
        with self._call("report", outcome):
            pass

    def finish(self, success: bool) -> None:
        with self._call("finish", success):
            pass

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    @property
    def reports(self) -> list[Outcome]:
        return [call[1] for call in self.calls if call[0] == "report"]

    @property
    def facts(self) -> list[tuple[Fact, ...]]:
        """The facts of each call of `observe`."""
        return [call[1] for call in self.calls if call[0] == "observe"]

    def count(self, *names: str) -> int | list[int]:
        counts = [self.names.count(name) for name in names]
        return counts[0] if len(counts) == 1 else counts


@dataclass
class ScriptRobot:
    """Robot with a function per skill; other skills succeed at once."""

    names: Sequence[str] = ("wave", "nod")
    deeds: dict[str, Callable[[ScriptRobot], Outcome]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    running: int = 0
    executed: list[str] = field(default_factory=list)
    started: Event = field(default_factory=Event)
    cancelled: Event = field(default_factory=Event)
    release: Event = field(default_factory=Event)  # ends `until_released`

    def skills(self) -> Sequence[str]:
        return self.names

    def observe(self) -> Iterable[Fact]:
        facts, self.facts = self.facts, []
        return facts

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        self.running += 1
        self.executed.append(skill)
        self.cancelled.clear()
        self.started.set()
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
    """Run until the test sets ``release``; ignore cancellations."""
    assert robot.release.wait(WAIT)
    return failed("released")


def fact(number: int) -> Fact:
    return Fact(f"mug_{number}", "object", "mug", place="table_1")


def limits(**seconds: float) -> Limits:
    return Limits(**asdict(QUICK) | seconds)


def change(limits: Limits, **seconds: float) -> None:
    """Change limits in place, also for the running task."""
    for name, value in seconds.items():
        object.__setattr__(limits, name, value)


@contextmanager
def limited(*names: str, hangs: Event) -> Iterator[None]:
    """Apply limits to calls of these ``names`` alone, after ``hangs`` is set; other calls take the time they need."""
    wait = BoundedCall.wait

    def patient(call: BoundedCall[Any], seconds: float, *futures: Future[Any]) -> bool:
        if call.name in names:
            assert hangs.wait(WAIT)
            return wait(call, seconds, *futures)
        return wait(call, WAIT, *futures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundedCall, "wait", patient)
        yield


def later(call: Callable[[], T]) -> Future[T]:
    """Return the future result of a call on another thread."""
    future: Future[T] = Future()
    Thread(target=lambda: future.set_result(call()), daemon=True).start()
    return future


def scripted(
    script: Sequence[Any] = (),
    facts: Sequence[Fact] = (),
    *,
    hooks: dict[str, Callable[..., object]] | None = None,
    robot: ScriptRobot | None = None,
    wave: Callable[[ScriptRobot], Outcome] | None = None,
    nod: Callable[[ScriptRobot], Outcome] | None = None,
    kind: type[Any] = RobotSession,
    **options: Any,
) -> tuple[Any, ScriptPlanner, ScriptRobot]:
    """Make a session, or a service, of a planner and a robot whose skills are the functions ``wave`` and ``nod``."""
    planner, robot = ScriptPlanner(script, hooks or {}), robot or ScriptRobot()
    robot.deeds |= {name: deed for name, deed in (("wave", wave), ("nod", nod)) if deed}
    robot.facts += facts
    return kind(planner, robot, **{"limits": QUICK} | options), planner, robot


service_of = partial(scripted, kind=RobotService)


def greet(script: Sequence[Any] = (), *values: Any, **options: Any) -> tuple[TaskReport, ScriptPlanner, ScriptRobot]:
    session, planner, robot = scripted(script, *values, **options)
    return session.run("greet"), planner, robot


def in_background(session: RobotSession, instruction: str = "do it") -> Future[TaskReport]:
    return later(partial(session.run, instruction))


def all_return(session: RobotSession) -> bool:
    """Wait for every call that the session began."""
    return all(call.wait(WAIT) for call in session._calls)
