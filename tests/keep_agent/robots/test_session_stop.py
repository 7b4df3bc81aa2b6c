from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Event

import pytest

from envs.outcome import Outcome, failed
from keep_agent.robots import Finished, Planned, Started
from keep_agent.robots.task.bounded_call import BoundedCall
from tests.keep_agent.robots import robots
from tests.keep_agent.robots.robots import QUICK, WAIT, Gate, ScriptRobot, greet, limited, limits, scripted


def impatient(*values: object, **options: object) -> tuple:
    """Run a task whose skills have a short time limit, applied after the first one has begun."""
    robot = options.pop("robot", None) or ScriptRobot()
    session, planner, _ = scripted(*values, robot=robot, **{"limits": limits(skill=0.02)} | options)
    with limited("skill", hangs=robot.started):
        return session.run("greet"), planner, robot, session


def test_late_skill_is_cancelled_and_the_task_continues() -> None:
    short = limits(skill=0.05)

    def wave(robot: ScriptRobot) -> Outcome:
        outcome = robots.until_cancelled(robot)
        robots.change(short, skill=WAIT)
        return outcome

    report, planner, robot, _ = impatient(["wave", "nod"], wave=wave, limits=short)
    assert report.success and robot.executed == ["wave", "nod"]
    assert "took longer than 0.05 s" in planner.reports[0].message


def test_skill_that_succeeds_during_its_cancellation_counts_as_success() -> None:
    report, *_ = impatient(["wave"], wave=lambda robot: Outcome(robot.cancelled.wait(WAIT)))
    assert report.steps[0].outcome == Outcome(True)


def test_late_cancellation_does_not_reach_the_next_skill() -> None:
    """The skill ends by itself before the robot receives the cancellation."""
    cancelling, nodding, hits, short = Event(), Event(), [], limits(skill=0.05)

    class SlowConnection(ScriptRobot):
        def cancel(self) -> None:
            robots.change(short, skill=WAIT)  # the next skill is not cancelled
            cancelling.set()
            nodding.wait(0.2)  # the robot must not nod in this time, however long it is
            hits.append(nodding.is_set())

    def nod(robot: ScriptRobot) -> Outcome:
        nodding.set()
        return Outcome(True)

    options = {"wave": lambda robot: Outcome(cancelling.wait(WAIT)), "nod": nod, "limits": short}
    report, _, robot, _ = impatient(["wave", "nod"], robot=SlowConnection(), **options)
    assert report.success and robot.executed == ["wave", "nod"] and hits == [False] * len(hits) and hits


def test_cancelled_skill_that_does_not_return_ends_the_task_and_blocks_the_next() -> None:
    short = limits(skill=0.02, cancel=0.05)
    report, planner, robot, session = impatient(["wave"], wave=robots.until_released, limits=short)
    assert (report.stop, report.hanging, report.success) == ("skill_hangs", "wave", False)
    assert planner.names == ["plan", "report", "finish"] and planner.calls[-1] == ("finish", False)
    session.limits = limits(answer=0.05)
    with limited("skill", hangs=robot.started):
        busy = session.run("again")
    assert (busy.stop, busy.success, busy.steps) == ("busy", False, ()) and "skill" in busy.message
    assert planner.count("plan") == 1
    robot.release.set()
    session.limits = QUICK
    assert robots.in_background(session).result(WAIT).success, "the next task waits until the robot is free"


def test_stop_cancels_the_skill_and_gives_the_first_reason() -> None:
    def wave(robot: ScriptRobot) -> Outcome:
        robots.until_released(robot)
        return robots.until_cancelled(robot)

    session, planner, robot = scripted(["wave", "nod"], wave=wave)
    running = robots.in_background(session)
    assert robot.started.wait(WAIT)
    assert session.stop("the cat is in the way") and session.stop("second")
    robot.release.set()
    report = running.result(WAIT)
    assert (report.stop, report.message, report.success) == ("stopped", "the cat is in the way", False)
    assert (robot.executed, robot.running) == (["wave"], 0)
    assert planner.calls[1:] == [("report", failed("cancelled")), ("finish", False)]


def test_stop_does_not_wait_for_a_planner() -> None:
    think, events = Gate(), []
    session, planner, _ = scripted([think], limits=limits(answer=0.05), watch=events.append)
    with limited("finish", hangs=think.entered):
        running = robots.in_background(session)
        assert think.entered.wait(WAIT)
        session.stop("enough")
        assert running.result(WAIT).stop == "stopped"
    assert planner.reports == []
    session.limits = QUICK
    think.open.set()
    assert session.run("next").success
    assert planner.count("plan", "report", "finish") == [2, 2, 1]
    assert planner.reports[0] == failed("enough"), "a late answer is reported on as well"
    assert [type(event) for event in events[:3]] == [Started, Finished, Started], "no event of a late answer"


def test_stop_without_a_task_does_nothing() -> None:
    session, _, _ = scripted(["wave"])
    for _ in range(2):
        assert not session.stop()
        assert session.run("greet").success


@pytest.mark.parametrize(("kind", "calls"), [(Started, []), (Planned, ["plan", "report", "finish"])])
def test_stop_at_an_event_prevents_the_skill(kind: type, calls: list[str]) -> None:
    """An adapter can stop a goal that was cancelled before its run; an unused planner gets no call of `finish`."""

    def watch(event: object) -> None:
        assert not isinstance(event, kind) or session.stop("not that")

    session, planner, robot = scripted(["wave"], watch=watch)
    report = session.run("greet")
    assert (report.stop, report.message, robot.executed) == ("stopped", "not that", [])
    assert planner.names == calls


def test_task_time_is_limited() -> None:
    report, _, robot = greet(["wave"], wave=robots.until_cancelled, limits=limits(task=0.05))
    assert (report.stop, report.hanging) == ("task_timeout", "") and not robot.running


def test_planner_timeout_during_a_skill_ends_both() -> None:
    release, answer = Event(), limits()

    def hang(facts: object) -> None:
        robots.change(answer, answer=0.05)  # earlier calls may have taken longer
        release.wait(WAIT)

    def change_and_wait(robot: ScriptRobot) -> Outcome:
        robot.facts = [robots.fact(1)]
        return robots.until_cancelled(robot)

    report, _, robot = greet(["wave"], wave=change_and_wait, hooks={"observe": hang}, limits=answer)
    release.set()
    assert report.stop == "planner_timeout" and not robot.running


def test_failed_observation_cancels_the_skill() -> None:
    def blind(robot: ScriptRobot) -> Outcome:
        robot.observe = robots.fail
        return robots.until_cancelled(robot)

    report, planner, robot = greet(["wave"], wave=blind)
    assert report.stop == "executor_error" and "ZeroDivisionError" in report.message
    assert not robot.running and planner.reports == [failed("cancelled")]


def test_interruption_leaves_no_skill_running() -> None:
    """Ctrl-C reaches the thread that runs the task."""

    def watch(event: object) -> None:
        if isinstance(event, Planned):
            raise KeyboardInterrupt

    session, planner, robot = scripted(["wave"], watch=watch)
    with pytest.raises(KeyboardInterrupt):
        session.run("greet")
    assert planner.count("plan", "report", "finish") == [1, 1, 1] and not robot.running


def test_feedback_after_the_end_of_its_task_is_dropped() -> None:
    events, spoke = [], Event()

    class Talkative(ScriptRobot):
        def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
            self.started.set()
            self.release.wait(WAIT)
            feedback("still here")
            spoke.set()
            return Outcome(True)

    hasty = limits(skill=0.02, cancel=0.02)
    report, _, robot, _ = impatient(["wave"], robot=Talkative(), limits=hasty, watch=events.append)
    assert report.hanging == "wave"
    robot.release.set()
    assert spoke.wait(WAIT)
    assert isinstance(events[-1], Finished)


def test_cancellation_is_repeated_until_the_skill_ends() -> None:
    calls = threading.Semaphore(0)

    class Deaf(ScriptRobot):
        def cancel(self) -> None:
            calls.release()

    def wave(robot: ScriptRobot) -> Outcome:
        return failed(str(all(calls.acquire(timeout=WAIT) for _ in range(2))))

    report, *_ = impatient(["wave"], robot=Deaf(), wave=wave)
    assert report.success and report.steps[0].outcome.message.endswith("True")


def test_skill_cancelled_before_it_begins_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the skill runs only after the end of the task."""
    over, ran = Event(), Event()
    work = BoundedCall._work

    def late(call: BoundedCall) -> None:
        if call.name == "skill":
            assert over.wait(WAIT)
        work(call)
        if call.name == "skill":
            ran.set()

    monkeypatch.setattr(BoundedCall, "_work", late)
    report, _, robot = greet(["wave"], limits=limits(skill=0.02))
    over.set()
    assert ran.wait(WAIT) and robot.executed == [] and not robot.cancelled.is_set()
    outcome = failed("took longer than 0.02 s and was cancelled: it did not begin")
    assert (report.hanging, report.steps[0].outcome) == ("", outcome)
