from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future
from threading import Event, Thread

import pytest

from envs.outcome import Outcome, failed
from keep_agent.errors import ConfigError
from keep_agent.robots import (
    Executed,
    Feedback,
    Finished,
    Limits,
    Observed,
    Planned,
    RobotError,
    RobotSession,
    Started,
    TaskReport,
)
from keep_agent.robots.dialogue import Dialogue
from tests.keep_agent.robots.robots import (
    WAIT,
    ScriptPlanner,
    ScriptRobot,
    fact,
    until_cancelled,
    until_released,
)

QUICK = Limits(skill=WAIT, task=WAIT, answer=WAIT, cancel=WAIT, period=0.01)


def limits(**seconds: float) -> Limits:
    return Limits(**{name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | seconds)


def in_background(session: RobotSession, instruction: str = "do it") -> Future[TaskReport]:
    future: Future[TaskReport] = Future()
    Thread(target=lambda: future.set_result(session.run(instruction)), daemon=True).start()
    return future


def test_a_task_is_observed_planned_carried_out_and_reported() -> None:
    planner, robot, events = ScriptPlanner(["wave", "nod"]), ScriptRobot(facts=[fact(1)]), []
    report = RobotSession(planner, robot, limits=QUICK, watch=events.append).run("greet")
    assert (report.success, report.stop, report.instruction) == (True, "done", "greet")
    assert [step.skill for step in report.steps] == robot.executed == ["wave", "nod"]
    assert [call[0] for call in planner.calls] == ["observe", *["plan", "report"] * 3]
    assert planner.named("observe") == [((fact(1),),)]
    assert planner.named("report") == [(Outcome(True),)] * 3
    assert planner.named("plan")[0] == ("greet", ("wave", "nod", "done")), "done can always be chosen"
    kinds = [type(event) for event in events]
    assert kinds == [Started, Observed, *[Planned, Feedback, Executed] * 2, Planned, Finished]
    assert events[-1].report is report
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_what_changes_during_a_skill_is_told_at_once() -> None:
    planner, seen = ScriptPlanner(["wave"]), Event()

    def change_and_wait(robot: ScriptRobot) -> Outcome:
        robot.facts = [fact(2)]
        return Outcome(seen.wait(WAIT))

    def watch(event: object) -> None:
        if isinstance(event, Observed) and event.skill == "wave":
            seen.set()

    robot = ScriptRobot(deeds={"wave": change_and_wait})
    report = RobotSession(planner, robot, limits=QUICK, watch=watch).run("greet")
    assert report.steps[0].outcome.ok, "the skill went on only because the planner had been told"
    assert [call[0] for call in planner.calls] == ["plan", "observe", "report", "plan", "report"]
    assert not planner.overlaps


def test_a_failure_is_reported_and_the_task_goes_on() -> None:
    planner = ScriptPlanner(["wave", "nod"])
    robot = ScriptRobot(deeds={"wave": lambda robot: failed("no arm")})
    report = RobotSession(planner, robot, limits=QUICK).run("greet")
    assert report.success
    assert planner.named("report")[0] == (failed("no arm"),)


def test_the_same_failure_again_and_again_ends_the_task() -> None:
    planner = ScriptPlanner(["wave", "nod", *["wave"] * 9])
    robot = ScriptRobot(deeds={"wave": lambda robot: failed("no arm")})
    report = RobotSession(planner, robot, limits=limits(failures=3)).run("greet")
    assert (report.stop, report.success) == ("stuck", False)
    assert robot.executed == ["wave", "nod", "wave", "wave", "wave"]
    assert "no arm" in report.message
    assert planner.named("finish") == [(False,)]


def test_a_skill_that_cannot_be_done_now_is_not_tried() -> None:
    planner, robot = ScriptPlanner(["fly"]), ScriptRobot()
    report = RobotSession(planner, robot, limits=QUICK).run("greet")
    assert report.success
    assert robot.executed == []
    assert planner.named("report")[0] == (failed("'fly' cannot be done now"),)


def test_so_many_skills_and_no_more() -> None:
    planner, robot = ScriptPlanner(["wave", "nod"] * 9), ScriptRobot()
    report = RobotSession(planner, robot, limits=limits(steps=3)).run("greet")
    assert (report.stop, len(report.steps)) == ("max_steps", 3)
    assert [len(planner.named(name)) for name in ("plan", "report", "finish")] == [3, 3, 1]


def test_a_skill_that_takes_too_long_is_cancelled_and_the_task_goes_on() -> None:
    planner = ScriptPlanner(["wave", "nod"])
    robot = ScriptRobot(deeds={"wave": until_cancelled})
    report = RobotSession(planner, robot, limits=limits(skill=0.05)).run("greet")
    assert report.success
    assert robot.executed == ["wave", "nod"]
    assert "took longer than 0.05 s" in planner.named("report")[0][0].message


def test_a_skill_that_ends_well_while_it_is_cancelled_has_ended_well() -> None:
    def at_the_last_moment(robot: ScriptRobot) -> Outcome:
        return Outcome(robot.cancelled.wait(WAIT))

    planner, robot = ScriptPlanner(["wave"]), ScriptRobot(deeds={"wave": at_the_last_moment})
    report = RobotSession(planner, robot, limits=limits(skill=0.05)).run("greet")
    assert report.steps[0].outcome == Outcome(True)


def test_a_cancelled_skill_that_does_not_return_ends_the_task() -> None:
    planner = ScriptPlanner(["wave"])
    robot = ScriptRobot(deeds={"wave": until_released})
    session = RobotSession(planner, robot, limits=limits(skill=0.02, cancel=0.05))
    report = session.run("greet")
    assert (report.stop, report.hanging, report.success) == ("skill_hangs", "wave", False)
    assert len(planner.named("report")) == 1
    assert planner.named("finish") == [(False,)]
    robot.release.set()
    assert session.run("again").success, "the next task waits until the robot is free"


def test_the_next_task_does_not_begin_while_a_skill_hangs() -> None:
    planner = ScriptPlanner(["wave"])
    robot = ScriptRobot(deeds={"wave": until_released})
    session = RobotSession(planner, robot, limits=limits(skill=0.02, cancel=0.05, answer=0.1))
    session.run("greet")
    refused = session.run("again")
    assert (refused.stop, refused.success, refused.steps) == ("busy", False, ())
    assert "skill" in refused.message
    assert len(planner.named("plan")) == 1
    robot.release.set()
    assert in_background(session).result(WAIT).success


def test_stop_cancels_the_skill_and_says_why() -> None:
    planner = ScriptPlanner(["wave", "nod"])
    robot = ScriptRobot(deeds={"wave": until_cancelled})
    session = RobotSession(planner, robot, limits=QUICK)
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
    answer = Event()
    planner, robot = ScriptPlanner([lambda: str(answer.wait(WAIT))]), ScriptRobot()
    session = RobotSession(planner, robot, limits=limits(answer=0.3))
    running = in_background(session)
    while not planner.named("plan"):
        threading.Event().wait(0.001)
    session.stop("enough")
    assert running.result(WAIT).stop == "stopped"
    assert planner.named("report") == []
    answer.set()
    assert session.run("next").success
    assert [len(planner.named(name)) for name in ("plan", "report", "finish")] == [2, 2, 1]
    assert planner.named("report")[0] == (failed("enough"),), "a late answer is reported on as well"


def test_stop_without_a_task_does_nothing() -> None:
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()
    session = RobotSession(planner, robot, limits=QUICK)
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


def test_two_tasks_at_once_are_refused() -> None:
    robot = ScriptRobot(deeds={"wave": until_cancelled})
    session = RobotSession(ScriptPlanner(["wave"]), robot, limits=QUICK)
    running = in_background(session)
    assert robot.begun.wait(WAIT)
    with pytest.raises(RobotError, match="a task is on"):
        session.run("another")
    session.stop()
    assert running.result(WAIT).stop == "stopped"


def test_the_time_of_a_task_is_limited() -> None:
    robot = ScriptRobot(deeds={"wave": until_cancelled})
    report = RobotSession(ScriptPlanner(["wave"]), robot, limits=limits(task=0.05)).run("greet")
    assert (report.stop, report.hanging) == ("task_timeout", "")
    assert not robot.running


def test_a_planner_that_does_not_answer_ends_the_task() -> None:
    answer = Event()
    planner, robot = ScriptPlanner([lambda: str(answer.wait(WAIT))]), ScriptRobot()
    session = RobotSession(planner, robot, limits=limits(answer=0.05))
    assert session.run("greet").stop == "planner_timeout"
    assert session.run("again").stop == "busy"
    answer.set()
    session.limits = QUICK
    assert session.run("again").success
    assert len(planner.named("plan")) == len(planner.named("report"))
    assert not planner.overlaps


def test_a_planner_that_hangs_while_a_skill_runs_ends_both() -> None:
    release = Event()

    class Hangs(ScriptPlanner):
        def observe(self, facts: object) -> None:
            release.wait(WAIT)

    def change_and_wait(robot: ScriptRobot) -> Outcome:
        robot.facts = [fact(1)]
        return until_cancelled(robot)

    robot = ScriptRobot(deeds={"wave": change_and_wait})
    report = RobotSession(Hangs(["wave"]), robot, limits=limits(answer=0.1)).run("greet")
    release.set()
    assert report.stop == "planner_timeout"
    assert not robot.running


@pytest.mark.parametrize(
    ("method", "stop"), [("plan", "planner_error"), ("report", "planner_error"), ("observe", "planner_error")]
)
def test_errors_of_the_planner_have_a_name(method: str, stop: str) -> None:
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot(facts=[fact(1)])

    def breaks(*arguments: object) -> None:
        raise ValueError("no such thing")

    setattr(planner, method, breaks)
    report = RobotSession(planner, robot, limits=QUICK).run("greet")
    assert (report.stop, report.success) == (stop, False)
    assert "ValueError: no such thing" in report.message
    assert len(planner.named("finish")) == (method != "observe")


@pytest.mark.parametrize("method", ["skills", "observe", "execute"])
def test_errors_of_the_robot_have_a_name(method: str) -> None:
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()

    def breaks(*arguments: object) -> None:
        raise OSError("cable")

    setattr(robot, method, breaks)
    report = RobotSession(planner, robot, limits=QUICK).run("greet")
    assert (report.stop, report.success) == ("executor_error", False)
    assert "cable" in report.message
    assert len(planner.named("report")) == len(planner.named("plan"))


def test_a_robot_that_goes_blind_during_a_skill_is_cancelled() -> None:
    def blind(robot: ScriptRobot) -> Outcome:
        robot.observe = lambda: 1 / 0
        return until_cancelled(robot)

    planner, robot = ScriptPlanner(["wave"]), ScriptRobot(deeds={"wave": blind})
    report = RobotSession(planner, robot, limits=QUICK).run("greet")
    assert report.stop == "executor_error"
    assert "ZeroDivisionError" in report.message
    assert not robot.running
    assert planner.named("report") == [(failed("cancelled"),)]


def test_a_result_that_is_none_is_an_error_of_the_robot() -> None:
    robot = ScriptRobot(deeds={"wave": lambda robot: None})
    report = RobotSession(ScriptPlanner(["wave"]), robot, limits=QUICK).run("greet")
    assert report.stop == "executor_error"
    assert "None" in report.message


def test_facts_that_no_planner_took_in_are_told_in_the_next_task() -> None:
    planner, robot = ScriptPlanner(), ScriptRobot(facts=[fact(1)])
    observe, planner.observe = planner.observe, lambda facts: 1 / 0
    session = RobotSession(planner, robot, limits=QUICK)
    assert session.run("greet").stop == "planner_error"
    planner.observe, robot.facts = observe, [fact(2)]
    assert session.run("greet").success
    assert planner.named("observe") == [((fact(1), fact(2)),)]


def test_a_judge_has_the_last_word() -> None:
    planner = ScriptPlanner()
    verdict = failed("1 of 2 goal conditions hold")
    report = RobotSession(planner, ScriptRobot(), limits=QUICK, judge=lambda: verdict).run("greet")
    assert (report.stop, report.success, report.message) == ("done", False, verdict.message)
    assert planner.named("report") == [(verdict,)]
    assert planner.named("finish") == [(False,)]


def test_a_watcher_that_fails_disturbs_nobody() -> None:
    report = RobotSession(ScriptPlanner(["wave"]), ScriptRobot(), limits=QUICK, watch=lambda event: 1 / 0).run("greet")
    assert report.success


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


@pytest.mark.parametrize("name", ["skill", "task", "answer", "cancel", "period", "steps", "failures"])
def test_limits_are_above_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_importing_robots_loads_nothing_heavy() -> None:
    code = (
        "import sys, keep_agent.robots\n"
        "heavy = ('torch', 'transformers', 'rospy', 'roslibpy', 'rclpy', 'mcap')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_skill_says_when_its_task_is_over_is_not_told() -> None:
    planner, events, said = ScriptPlanner(["wave"]), [], Event()

    class Talks(ScriptRobot):
        def execute(self, skill: str, feedback) -> Outcome:
            self.release.wait(WAIT)
            feedback("still here")
            said.set()
            return Outcome(True)

    robot = Talks()
    session = RobotSession(planner, robot, limits=limits(skill=0.02, cancel=0.02), watch=events.append)
    assert session.run("greet").hanging == "wave"
    robot.release.set()
    assert said.wait(WAIT)
    assert isinstance(events[-1], Finished)


def test_a_cancellation_that_came_too_early_is_repeated() -> None:
    twice = threading.Semaphore(0)

    class Deaf(ScriptRobot):
        def cancel(self) -> None:
            twice.release()

    robot = Deaf(deeds={"wave": lambda robot: failed(str(all(twice.acquire(timeout=WAIT) for _ in range(2))))})
    report = RobotSession(ScriptPlanner(["wave"]), robot, limits=limits(skill=0.02)).run("greet")
    assert report.success
    assert report.steps[0].outcome.message.endswith("True")


def test_the_first_reason_to_stop_counts() -> None:
    robot = ScriptRobot(deeds={"wave": until_released})
    session = RobotSession(ScriptPlanner(["wave"]), robot, limits=QUICK)
    running = in_background(session)
    assert robot.begun.wait(WAIT)
    assert session.stop("first")
    assert session.stop("second")
    robot.release.set()
    assert running.result(WAIT).message == "first"


def test_a_skill_that_ends_in_the_middle_of_a_look_waits_for_it() -> None:
    """So that the planner hears what was seen before what became of the skill, and never both at once."""
    looking, over = Event(), Event()

    class Slow(ScriptPlanner):
        def observe(self, facts: object) -> None:
            self._enter("observe")
            looking.set()
            assert over.wait(WAIT)
            threading.Event().wait(0.05)  # the session would go on meanwhile
            self._working.pop()

    def change(robot: ScriptRobot) -> Outcome:
        robot.facts = [fact(1)]
        assert looking.wait(WAIT)
        over.set()
        return Outcome(True)

    planner = Slow(["wave"])
    assert RobotSession(planner, ScriptRobot(deeds={"wave": change}), limits=QUICK).run("greet").success
    assert [call[0] for call in planner.calls] == ["plan", "observe", "report", "plan", "report"]
    assert not planner.overlaps


def test_nothing_is_planned_when_the_task_is_over() -> None:
    """A call that begins just when somebody stops the task comes too late."""
    planner = ScriptPlanner()
    dialogue = Dialogue(planner, "greet")
    dialogue.end(failed("stopped"))
    with pytest.raises(RobotError, match="over"):
        dialogue.plan(["wave"])
    dialogue.report(Outcome(True))
    assert not dialogue.observe([fact(1)])
    assert planner.calls == []


def test_a_stop_at_the_decision_keeps_the_skill_from_beginning() -> None:
    planner, robot = ScriptPlanner(["wave"]), ScriptRobot()

    def veto(event: object) -> None:
        if isinstance(event, Planned):
            assert session.stop("not that")

    session = RobotSession(planner, robot, limits=QUICK, watch=veto)
    report = session.run("greet")
    assert (report.stop, report.message, robot.executed) == ("stopped", "not that", [])
    assert len(planner.named("report")) == 1


@pytest.mark.parametrize(
    ("skills", "plan", "judged", "stop", "named"),
    [
        (None, "wave", Outcome(True), "executor_error", "skills"),
        (["wave"], None, Outcome(True), "planner_error", "no Decision"),
        (["wave"], "done", True, "executor_error", "no Outcome"),
    ],
)
def test_what_is_none_of_what_was_promised_ends_the_task_by_name(
    skills: list[str] | None, plan: str | None, judged: object, stop: str, named: str
) -> None:
    planner, robot = ScriptPlanner([plan]), ScriptRobot()
    robot.skills = lambda: skills
    if plan is None:
        planner.plan = lambda instruction, skills: None
    report = RobotSession(planner, robot, limits=QUICK, judge=lambda: judged).run("greet")
    assert (report.stop, report.success) == (stop, False)
    assert named in report.message
