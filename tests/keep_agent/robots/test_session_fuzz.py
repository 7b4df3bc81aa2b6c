"""Whatever robot and planner do: the task ends in time, every decision is reported on once, nothing is left running."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.outcome import Outcome, failed
from keep_agent.robots import Finished, Limits, RobotSession, TaskReport
from tests.keep_agent.robots.robots import WAIT, ScriptPlanner, ScriptRobot, fact, in_background
from tests.waiting import until

LIMITS = Limits(skill=0.03, task=0.3, answer=0.06, cancel=0.05, period=0.004, steps=6, failures=3)

DEEDS = ("works", "fails", "breaks", "waits", "hangs", "blinds", "sees", "slow")
THOUGHTS = ("first", "unknown", "breaks", "hangs", "slow", "done")
Deed, Thought = st.sampled_from(DEEDS), st.sampled_from(THOUGHTS)


@dataclass
class Case:
    deeds: list[str]
    thoughts: list[str]
    press: int | None  # stop after so many milliseconds
    release: Event = field(default_factory=Event)

    def act(self, robot: ScriptRobot) -> Outcome:
        deed = self.deeds[(len(robot.executed) - 1) % len(self.deeds)]
        robot.facts = [fact(len(robot.executed))]
        match deed:
            case "fails":
                return failed("no")
            case "breaks":
                raise RuntimeError("broken")
            case "waits":
                until(lambda: robot.cancelled.is_set() or self.release.is_set())
                return failed("cancelled")
            case "hangs":
                self.release.wait()
            case "blinds":
                robot.observe = lambda: 1 / 0
            case "slow":
                robot.cancelled.wait(0.01)
        return Outcome(True)

    def think(self, number: int) -> str:
        match self.thoughts[number % len(self.thoughts)]:
            case "unknown":
                return "fly"
            case "breaks":
                raise ValueError("no idea")
            case "hangs":
                self.release.wait()
            case "slow":
                time.sleep(0.01)
            case "done":
                return "done"
        return "wave"


def play(case: Case, planner: ScriptPlanner, robot: ScriptRobot, events: list) -> tuple[RobotSession, TaskReport]:
    session = RobotSession(planner, robot, limits=LIMITS, watch=events.append)
    future = in_background(session, "greet")
    if case.press is not None:
        time.sleep(case.press / 1e3)
        session.stop("pressed")
    return session, future.result(WAIT)


@settings(max_examples=60)
@given(
    st.lists(Deed, min_size=1, max_size=5), st.lists(Thought, min_size=1, max_size=5), st.none() | st.integers(0, 60)
)
def test_every_task_ends(deeds: list[str], thoughts: list[str], press: int | None) -> None:
    case = Case(deeds, thoughts, press)
    planner = ScriptPlanner([lambda n=n: case.think(n) for n in range(20)])
    robot, events = ScriptRobot(), []
    robot.deeds["wave"] = case.act
    try:
        session, report = play(case, planner, robot, events)
        assert isinstance(events[-1], Finished)
        assert events[-1].report == report
        assert len(report.steps) <= LIMITS.steps
        assert report.success == (report.stop == "done")
        assert report.hanging or not robot.running
        assert len(planner.named("report")) <= len(planner.named("plan"))
    finally:
        case.release.set()

    settled(session)
    assert not robot.running
    check_conversation(planner, report)


def settled(session: RobotSession) -> None:
    """Wait for what the task left behind."""
    for call in session._calls:
        assert call.wait(WAIT), call.name


def check_conversation(planner: ScriptPlanner, report: TaskReport) -> None:
    """Calls come one after another; each decision gets one report before anything else is decided; one end."""
    assert not planner.overlaps
    spoken = [call[0] for call in planner.calls if call[0] != "observe"]
    ended = spoken.pop() if spoken and spoken[-1] == "finish" else ""
    late = report.stop == "planner_timeout" and spoken[-1:] == ["report"]  # that of "done" may have been heard: over
    assert late or bool(ended) == bool(spoken and not report.success)
    assert "finish" not in spoken
    assert "report" not in spoken[:1]
    assert all(pair != ("report", "report") for pair in pairwise(spoken))
    assert len(planner.named("report")) == planner.returned
    assert planner.returned >= len(planner.named("plan")) - 1, "a planner that broke is not asked again"


@pytest.mark.slow
@settings(max_examples=600)
@given(
    st.lists(Deed, min_size=1, max_size=5), st.lists(Thought, min_size=1, max_size=5), st.none() | st.integers(0, 60)
)
def test_every_task_ends_often(deeds: list[str], thoughts: list[str], press: int | None) -> None:
    test_every_task_ends.hypothesis.inner_test(deeds, thoughts, press)
