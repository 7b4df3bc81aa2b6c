"""Tasks that are stopped, and what takes too long."""

from __future__ import annotations

import threading
from threading import Event

import pytest

from envs.outcome import Outcome, failed
from keep_agent.robots import Finished, Planned, RobotSession, Started
from keep_agent.robots.task.bounded_call import Call
from tests.keep_agent.robots.robots import (
    QUICK,
    WAIT,
    ScriptPlanner,
    ScriptRobot,
    change,
    fact,
    greeted,
    in_background,
    limited,
    limits,
    scripted,
    thinking,
    until_cancelled,
    until_released,
)


def test_a_skill_that_takes_too_long_is_cancelled_and_the_task_goes_on() -> None:
    hasty = limits(skill=0.05)

    def wave(robot: ScriptRobot) -> Outcome:
        outcome = until_cancelled(robot)
        change(hasty, skill=WAIT)
        return outcome

    planner = ScriptPlanner(["wave", "nod"])
    robot = ScriptRobot(deeds={"wave": wave})
    with limited("skill", hangs=robot.begun):
        report = RobotSession(planner, robot, limits=hasty).run("greet")
    assert report.success
    assert robot.executed == ["wave", "nod"]
    assert "took longer than 0.05 s" in planner.named("report")[0][0].message


def test_a_skill_that_ends_well_while_it_is_cancelled_has_ended_well() -> None:
    def at_the_last_moment(robot: ScriptRobot) -> Outcome:
        return Outcome(robot.cancelled.wait(WAIT))

    planner, robot = ScriptPlanner(["wave"]), ScriptRobot(deeds={"wave": at_the_last_moment})
    with limited("skill", hangs=robot.begun):
        report = RobotSession(planner, robot, limits=limits(skill=0.05)).run("greet")
    assert report.steps[0].outcome == Outcome(True)


def test_a_cancellation_on_its_way_never_meets_the_next_skill() -> None:
    """The skill ends by itself before the robot hears of it."""
    asked, met, hasty = Event(), [], limits(skill=0.05)

    class FarAway(ScriptRobot):
        def cancel(self) -> None:
            change(hasty, skill=WAIT)  # the next skill is not cancelled
            asked.set()
            nodding.wait(0.2)  # it never nods meanwhile, however long that is
            met.append(nodding.is_set())

    def nod(robot: ScriptRobot) -> Outcome:
        nodding.set()
        return Outcome(True)

    nodding = Event()
    robot = FarAway(deeds={"wave": lambda robot: Outcome(asked.wait(WAIT)), "nod": nod})
    with limited("skill", hangs=robot.begun):
        report = RobotSession(ScriptPlanner(["wave", "nod"]), robot, limits=hasty).run("greet")
    assert report.success and robot.executed == ["wave", "nod"] and met == [False] * len(met) and met


def test_a_cancelled_skill_that_does_not_return_ends_the_task() -> None:
    session, planner, robot = scripted(["wave"], wave=until_released, limits=limits(skill=0.02, cancel=0.05))
    with limited("skill", hangs=robot.begun):
        report = session.run("greet")
    assert (report.stop, report.hanging, report.success) == ("skill_hangs", "wave", False)
    assert len(planner.named("report")) == 1
    assert planner.named("finish") == [(False,)]
    robot.release.set()
    session.limits = QUICK
    assert session.run("again").success, "the next task waits until the robot is free"


def test_the_next_task_does_not_begin_while_a_skill_hangs() -> None:
    session, planner, robot = scripted(["wave"], wave=until_released, limits=limits(skill=0.02, cancel=0.05))
    with limited("skill", hangs=robot.begun):
        assert session.run("greet").stop == "skill_hangs"
    session.limits = limits(answer=0.05)
    with limited("skill", hangs=robot.begun):
        refused = session.run("again")
    assert (refused.stop, refused.success, refused.steps) == ("busy", False, ())
    assert "skill" in refused.message
    assert len(planner.named("plan")) == 1
    robot.release.set()
    session.limits = QUICK
    assert in_background(session).result(WAIT).success


def test_stop_cancels_the_skill_and_says_why() -> None:
    session, planner, robot = scripted(["wave", "nod"], wave=until_cancelled)
    running = in_background(session)
    assert robot.begun.wait(WAIT)
    assert session.stop("the cat is in the way")
    report = running.result(WAIT)
    assert (report.stop, report.message, report.success) == ("stopped", "the cat is in the way", False)
    assert robot.executed == ["wave"]
    assert not robot.running
    assert planner.named("report") == [(failed("cancelled"),)]
    assert planner.named("finish") == [(False,)]


def test_stop_does_not_wait_for_a_planner() -> None:
    (planner, asked, answer), robot = thinking(), ScriptRobot()
    session = RobotSession(planner, robot, limits=limits(answer=0.05))
    with limited("finish", hangs=asked):
        running = in_background(session)
        assert asked.wait(WAIT)
        session.stop("enough")
        assert running.result(WAIT).stop == "stopped"
    assert planner.named("report") == []
    session.limits = QUICK
    answer.set()
    assert session.run("next").success
    assert [len(planner.named(name)) for name in ("plan", "report", "finish")] == [2, 2, 1]
    assert planner.named("report")[0] == (failed("enough"),), "a late answer is reported on as well"


def test_stop_without_a_task_does_nothing() -> None:
    session, _, _ = scripted(["wave"])
    assert not session.stop()
    assert session.run("greet").success
    assert not session.stop()
    assert session.run("greet").success


def test_the_first_event_is_early_enough_to_stop() -> None:
    """So an adapter whose goal was cancelled before the run began loses nothing."""
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()

    def watch(event: object) -> None:
        if isinstance(event, Started):
            assert session.stop("never mind")

    session = RobotSession(planner, robot, limits=QUICK, watch=watch)
    assert session.run("greet").stop == "stopped"
    assert robot.executed == []
    assert planner.calls == [], "a planner that was never asked needs no end"


def test_the_time_of_a_task_is_limited() -> None:
    report, _, robot = greeted(["wave"], wave=until_cancelled, limits=limits(task=0.05))
    assert (report.stop, report.hanging) == ("task_timeout", "")
    assert not robot.running


def test_a_planner_that_hangs_while_a_skill_runs_ends_both() -> None:
    release, own = Event(), limits()

    class Hangs(ScriptPlanner):
        def observe(self, facts: object) -> None:
            change(own, answer=0.05)  # what was answered before may have taken longer
            release.wait(WAIT)

    def change_and_wait(robot: ScriptRobot) -> Outcome:
        robot.facts = [fact(1)]
        return until_cancelled(robot)

    robot = ScriptRobot(deeds={"wave": change_and_wait})
    report = RobotSession(Hangs(["wave"]), robot, limits=own).run("greet")
    release.set()
    assert report.stop == "planner_timeout"
    assert not robot.running


def test_a_robot_that_goes_blind_during_a_skill_is_cancelled() -> None:
    def blind(robot: ScriptRobot) -> Outcome:
        robot.observe = lambda: 1 / 0
        return until_cancelled(robot)

    report, planner, robot = greeted(["wave"], wave=blind)
    assert report.stop == "executor_error"
    assert "ZeroDivisionError" in report.message
    assert not robot.running
    assert planner.named("report") == [(failed("cancelled"),)]


def test_an_interruption_leaves_nothing_running() -> None:
    """Ctrl-C reaches the thread that runs the task."""

    def watch(event: object) -> None:
        if isinstance(event, Planned):
            raise KeyboardInterrupt

    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()
    with pytest.raises(KeyboardInterrupt):
        RobotSession(planner, robot, limits=QUICK, watch=watch).run("greet")
    assert [len(planner.named(name)) for name in ("plan", "report", "finish")] == [1, 1, 1]
    assert not robot.running


def test_what_a_skill_says_when_its_task_is_over_is_not_told() -> None:
    planner, events, said = ScriptPlanner(["wave"]), [], Event()

    class Talks(ScriptRobot):
        def execute(self, skill: str, feedback) -> Outcome:
            self.begun.set()
            self.release.wait(WAIT)
            feedback("still here")
            said.set()
            return Outcome(True)

    robot = Talks()
    session = RobotSession(planner, robot, limits=limits(skill=0.02, cancel=0.02), watch=events.append)
    with limited("skill", hangs=robot.begun):
        assert session.run("greet").hanging == "wave"
    robot.release.set()
    assert said.wait(WAIT)
    assert isinstance(events[-1], Finished)


def test_what_is_seen_when_its_task_is_over_is_not_told() -> None:
    looking, release, events = Event(), Event(), []

    class Slow(ScriptPlanner):
        def observe(self, facts: object) -> None:
            looking.set()
            assert release.wait(WAIT)

    session = RobotSession(Slow(), ScriptRobot(facts=[fact(1)]), limits=limits(answer=0.05), watch=events.append)
    with limited("finish", hangs=looking):
        running = in_background(session)
        assert looking.wait(WAIT)
        session.stop()
        assert running.result(WAIT).stop == "stopped"
    release.set()
    assert all(call.wait(WAIT) for call in session._calls)
    assert [type(event) for event in events] == [Started, Finished]


def test_a_cancellation_that_came_too_early_is_repeated() -> None:
    twice = threading.Semaphore(0)

    class Deaf(ScriptRobot):
        def cancel(self) -> None:
            twice.release()

    robot = Deaf(deeds={"wave": lambda robot: failed(str(all(twice.acquire(timeout=WAIT) for _ in range(2))))})
    with limited("skill", hangs=robot.begun):
        report = RobotSession(ScriptPlanner(["wave"]), robot, limits=limits(skill=0.02)).run("greet")
    assert report.success
    assert report.steps[0].outcome.message.endswith("True")


def test_a_skill_that_is_cancelled_before_it_begins_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is late: until the task is over, nothing of it has run."""
    over, woken = Event(), Event()
    work = Call._work

    def late(call: Call) -> None:
        if call.name == "skill":
            assert over.wait(WAIT)
        work(call)
        if call.name == "skill":
            woken.set()

    monkeypatch.setattr(Call, "_work", late)
    report, _, robot = greeted(["wave"], limits=limits(skill=0.02))
    over.set()
    assert woken.wait(WAIT) and robot.executed == [] and not robot.cancelled.is_set()
    assert report.hanging == "" and report.steps[0].outcome == failed(
        "took longer than 0.02 s and was cancelled: it did not begin"
    )


def test_the_first_reason_to_stop_counts() -> None:
    session, _, robot = scripted(["wave"], wave=until_released)
    running = in_background(session)
    assert robot.begun.wait(WAIT)
    assert session.stop("first")
    assert session.stop("second")
    robot.release.set()
    assert running.result(WAIT).message == "first"


def test_a_stop_at_the_decision_keeps_the_skill_from_beginning() -> None:
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()

    def veto(event: object) -> None:
        if isinstance(event, Planned):
            assert session.stop("not that")

    session = RobotSession(planner, robot, limits=QUICK, watch=veto)
    report = session.run("greet")
    assert (report.stop, report.message, robot.executed) == ("stopped", "not that", [])
    assert len(planner.named("report")) == 1
