from __future__ import annotations

import math
import threading
from threading import Event

import pytest

from envs.outcome import Outcome, failed
from keep_agent.agent.validation import check_report
from keep_agent.errors import ConfigError
from keep_agent.robots import Executed, Feedback, Finished, Limits, Observed, Planned, RobotError, RobotSession, Started
from keep_agent.robots.task.dialogue import Dialogue, PendingFacts, SinglePlans
from tests.keep_agent.robots.robots import (
    QUICK,
    WAIT,
    ScriptPlanner,
    ScriptRobot,
    fact,
    greeted,
    in_background,
    limited,
    limits,
    scripted,
    thinking,
    until_cancelled,
)


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
    report, planner, _ = greeted(["wave", "nod"], wave=lambda robot: failed("no arm"))
    assert report.success
    assert planner.named("report")[0] == (failed("no arm"),)


def test_the_same_failure_again_and_again_ends_the_task() -> None:
    report, planner, robot = greeted(
        ["wave", "nod", *["wave"] * 9], wave=lambda robot: failed("no arm"), limits=limits(failures=3)
    )
    assert (report.stop, report.success) == ("stuck", False)
    assert robot.executed == ["wave", "nod", "wave", "wave", "wave"]
    assert "no arm" in report.message
    assert planner.named("finish") == [(False,)]


def test_a_skill_that_cannot_be_done_now_is_not_tried() -> None:
    report, planner, robot = greeted(["fly"])
    assert report.success
    assert robot.executed == []
    assert planner.named("report")[0] == (failed("'fly' cannot be done now"),)


def test_so_many_skills_and_no_more() -> None:
    report, planner, _ = greeted(["wave", "nod"] * 9, limits=limits(steps=3))
    assert (report.stop, len(report.steps)) == ("max_steps", 3)
    assert [len(planner.named(name)) for name in ("plan", "report", "finish")] == [3, 3, 1]


def test_two_tasks_at_once_are_refused() -> None:
    session, _, robot = scripted(["wave"], wave=until_cancelled)
    running = in_background(session)
    assert robot.begun.wait(WAIT)
    with pytest.raises(RobotError, match="a task is on"):
        session.run("another")
    session.stop()
    assert running.result(WAIT).stop == "stopped"


def test_a_planner_that_does_not_answer_ends_the_task() -> None:
    (planner, asked, answer), robot = thinking(), ScriptRobot()
    session = RobotSession(planner, robot, limits=limits(answer=0.05))
    with limited("plan", "finish", hangs=asked):
        assert session.run("greet").stop == "planner_timeout"
        assert session.run("again").stop == "busy"
    answer.set()
    session.limits = QUICK
    assert session.run("again").success
    assert len(planner.named("plan")) == len(planner.named("report"))
    assert not planner.overlaps


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


def test_a_result_that_is_none_is_an_error_of_the_robot() -> None:
    report, _, _ = greeted(["wave"], wave=lambda robot: None)
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


@pytest.mark.parametrize("value", [math.inf, 1e9, math.nan])
def test_a_limit_that_nobody_can_wait_for_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="limit answer=.* must be above 0, up to 1000000"):
        Limits(answer=value)


@pytest.mark.parametrize("name", ["skill", "task", "answer", "cancel", "period", "steps", "failures"])
def test_limits_are_above_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


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


class Deaf(ScriptPlanner):
    """Does not take the first report in."""

    def report(self, outcome: Outcome) -> None:
        super().report(outcome)
        if len(self.named("report")) == 1:
            raise ConnectionError("gone for a moment")


def test_a_report_that_was_not_taken_is_made_again_and_before_the_task_ends() -> None:
    """Else the planner takes the decision for carried out, though it failed."""
    planner = Deaf(["wave"])
    report = RobotSession(planner, ScriptRobot(deeds={"wave": lambda one: failed("no arm")}), limits=QUICK).run("greet")
    assert report.stop == "planner_error"
    assert [call[0] for call in planner.calls] == ["plan", "report", "report", "finish"]
    assert planner.named("report") == [(failed("no arm"),)] * 2 and planner.named("finish") == [(False,)]


def test_a_single_plans_report_may_be_made_again() -> None:
    planner = Deaf(["wave"])
    plans = SinglePlans(planner, PendingFacts())
    plans.next_plan("greet", ["wave"])()
    with pytest.raises(ConnectionError):
        plans.next_report(failed("no arm"))()
    plans.next_report(failed("no arm"))()
    assert planner.named("report") == [(failed("no arm"),)] * 2
    with pytest.raises(RobotError, match="report once"):
        plans.next_report(failed("no arm"))


def test_what_a_robot_says_is_told_as_far_as_it_can_be() -> None:
    """A trace of 5,000 characters, a half of a surrogate pair: no reason to tell nothing."""
    planner = ScriptPlanner(["wave"])
    dialogue = Dialogue(planner, "greet")
    dialogue.plan(["wave"])
    dialogue.report(failed("\ud800" + "x" * 5000))
    ((told,),) = planner.named("report")
    check_report(told, None)
    assert told == failed("?" + "x" * 1999)
