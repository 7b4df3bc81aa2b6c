"""Property test of a session: every task ends in time, each decision has one report, and no call remains."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.outcome import Outcome, failed
from keep_agent.robots import Finished, Limits, TaskReport
from tests.keep_agent.robots import robots
from tests.keep_agent.robots.robots import WAIT, ScriptPlanner, ScriptRobot, fact, scripted
from tests.waiting import until

LIMITS = Limits(skill=0.03, task=0.3, answer=0.06, cancel=0.05, period=0.004, steps=6, failures=3)
DEEDS = ("succeed", "fail", "break", "wait", "hang", "blind", "slow")
THOUGHTS = ("first", "unknown", "break", "hang", "slow", "done")
Deeds = st.lists(st.sampled_from(DEEDS), min_size=1, max_size=5)
Thoughts = st.lists(st.sampled_from(THOUGHTS), min_size=1, max_size=5)
Stops = st.none() | st.integers(0, 60)  # milliseconds


def act(deed: str, robot: ScriptRobot, release: Event) -> Outcome:
    robot.facts = [fact(len(robot.executed))]
    match deed:
        case "fail":
            return failed("no")
        case "break":
            raise RuntimeError("broken")
        case "wait":
            until(lambda: robot.cancelled.is_set() or release.is_set())
            return failed("cancelled")
        case "hang":
            release.wait()
        case "blind":
            robot.observe = robots.fail
        case "slow":
            robot.cancelled.wait(0.01)
    return Outcome(True)


def think(thought: str, release: Event) -> str:
    match thought:
        case "break":
            raise ValueError("no idea")
        case "hang":
            release.wait()
        case "slow":
            time.sleep(0.01)
    return {"unknown": "fly", "done": "done"}.get(thought, "wave")


@settings(max_examples=60)
@given(Deeds, Thoughts, Stops)
def test_every_task_ends(deeds: list[str], thoughts: list[str], stop: int | None) -> None:
    release, events = Event(), []
    session, planner, robot = scripted(
        [lambda n=n: think(thoughts[n % len(thoughts)], release) for n in range(20)],
        wave=lambda robot: act(deeds[(len(robot.executed) - 1) % len(deeds)], robot, release),
        limits=LIMITS,
        watch=events.append,
    )
    try:
        future = robots.in_background(session, "greet")
        if stop is not None:
            time.sleep(stop / 1e3)
            session.stop("pressed")
        report = future.result(WAIT)
        assert isinstance(events[-1], Finished) and events[-1].report == report
        assert len(report.steps) <= LIMITS.steps and report.success == (report.stop == "done")
        assert report.hanging or not robot.running
        assert planner.count("report") <= planner.count("plan")
    finally:
        release.set()
    assert robots.all_return(session) and not robot.running
    check_dialogue(planner, report)


def check_dialogue(planner: ScriptPlanner, report: TaskReport) -> None:
    """Check that calls come one after another, each decision has one report before the next, and the task one end."""
    assert not planner.overlaps
    calls = [name for name in planner.names if name != "observe"]
    end = calls.pop() if calls and calls[-1] == "finish" else ""
    late = report.stop == "planner_timeout" and calls[-1:] == ["report"]  # the report on "done" may be the last call
    assert late or bool(end) == bool(calls and not report.success)
    assert "finish" not in calls and "report" not in calls[:1]
    assert all(pair != ("report", "report") for pair in pairwise(calls))
    assert planner.count("report") == planner.decisions
    assert planner.decisions >= planner.count("plan") - 1, "a planner that failed is not called again"


@pytest.mark.slow
@settings(max_examples=600)
@given(Deeds, Thoughts, Stops)
def test_every_task_ends_often(deeds: list[str], thoughts: list[str], stop: int | None) -> None:
    test_every_task_ends.hypothesis.inner_test(deeds, thoughts, stop)
