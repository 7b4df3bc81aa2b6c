from __future__ import annotations

import math
import threading
from threading import Event

import pytest

from envs.outcome import Outcome, failed
from keep_agent.agent.validation import check_report
from keep_agent.errors import ConfigError
from keep_agent.robots import Executed, Feedback, Finished, Limits, Observed, Planned, RobotError, Started
from keep_agent.robots.task.dialogue import Dialogue, PendingFacts, SinglePlans
from tests.keep_agent.robots import robots
from tests.keep_agent.robots.robots import QUICK, WAIT, Gate, ScriptRobot, fact, greet, limited, limits, scripted

OK, NO_ARM = Outcome(True), failed("no arm")


def test_task_is_observed_planned_executed_and_reported() -> None:
    events = []
    report, planner, robot = greet(["wave", "nod"], [fact(1)], watch=events.append)
    assert (report.success, report.stop, report.instruction) == (True, "done", "greet")
    assert [step.skill for step in report.steps] == robot.executed == ["wave", "nod"]
    assert planner.names == ["observe", *["plan", "report"] * 3]
    assert (planner.facts, planner.reports) == ([(fact(1),)], [OK] * 3)
    assert planner.calls[1] == ("plan", "greet", ("wave", "nod", "done")), "done can always be chosen"
    kinds = [type(event) for event in events]
    assert kinds == [Started, Observed, *[Planned, Feedback, Executed] * 2, Planned, Finished]
    assert events[-1].report is report
    assert [event.at for event in events] == sorted(event.at for event in events)


@pytest.mark.parametrize(("skill", "outcome"), [("wave", NO_ARM), ("fly", failed("'fly' cannot be done now"))])
def test_task_continues_after_a_failure(skill: str, outcome: Outcome) -> None:
    report, planner, robot = greet([skill], wave=lambda robot: NO_ARM)
    assert report.success and robot.executed == [skill] * (skill == "wave")
    assert planner.reports[0] == outcome


def test_repeated_failure_of_a_skill_ends_the_task() -> None:
    report, planner, robot = greet(["wave", "nod", *["wave"] * 9], wave=lambda robot: NO_ARM, limits=limits(failures=3))
    assert (report.stop, report.success) == ("stuck", False) and "no arm" in report.message
    assert robot.executed == ["wave", "nod", "wave", "wave", "wave"]
    assert planner.calls[-1] == ("finish", False) and planner.count("finish") == 1


def test_step_limit_ends_the_task() -> None:
    report, planner, _ = greet(["wave", "nod"] * 9, limits=limits(steps=3))
    assert (report.stop, len(report.steps)) == ("max_steps", 3)
    assert planner.count("plan", "report", "finish") == [3, 3, 1]


def test_planner_timeout_ends_the_task() -> None:
    think = Gate()
    session, planner, _ = scripted([think], limits=limits(answer=0.05))
    with limited("plan", "finish", hangs=think.entered):
        assert session.run("greet").stop == "planner_timeout"
        assert session.run("again").stop == "busy"
    think.open.set()
    session.limits = QUICK
    assert session.run("again").success
    assert planner.count("plan") == planner.count("report") and not planner.overlaps


@pytest.mark.parametrize("method", ["plan", "report", "observe", "robot.skills", "robot.observe", "robot.execute"])
def test_error_ends_the_task_with_its_text(method: str) -> None:
    session, planner, robot = scripted(["wave"], [fact(1)], hooks={method: robots.fail})
    part, _, call = method.rpartition(".")
    if part:
        setattr(robot, call, robots.fail)
    report = session.run("greet")
    assert (report.stop, report.success) == ("executor_error" if part else "planner_error", False)
    assert "ZeroDivisionError: broken" in report.message
    assert planner.count("finish") == (call not in ("skills", "observe"))
    assert not part or planner.count("report") == planner.count("plan")


def test_facts_after_a_planner_error_are_observed_in_the_next_task() -> None:
    session, planner, robot = scripted((), [fact(1)], hooks={"observe": robots.fail})
    assert session.run("greet").stop == "planner_error"
    planner.hooks.clear()
    robot.facts = [fact(2)]
    assert session.run("greet").success
    assert planner.facts == [(fact(1),), (fact(1), fact(2))]


def test_judge_decides_the_outcome() -> None:
    verdict = failed("1 of 2 goal conditions hold")
    report, planner, _ = greet(judge=lambda: verdict)
    assert (report.stop, report.success, report.message) == ("done", False, verdict.message)
    assert planner.calls[1:] == [("report", verdict), ("finish", False)]


@pytest.mark.parametrize("value", [0, math.inf, 1e9, math.nan])
@pytest.mark.parametrize("name", ["skill", "task", "answer", "cancel", "period", "steps", "failures"])
def test_limit_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"limit {name}=.* must be above 0, up to 1000000"):
        Limits(**{name: value})


def test_report_waits_for_an_observation_that_runs_at_the_end_of_a_skill() -> None:
    """The planner receives facts before the outcome of the skill, and never both at once."""
    looking, over = Event(), Event()

    def look(facts: object) -> None:
        looking.set()
        assert over.wait(WAIT)
        threading.Event().wait(0.05)  # a faulty session would report in this time

    def change(robot: ScriptRobot) -> Outcome:
        robot.facts = [fact(1)]
        assert looking.wait(WAIT)
        over.set()
        return OK

    report, planner, _ = greet(["wave"], wave=change, hooks={"observe": look})
    assert report.success and not planner.overlaps
    assert planner.names == ["plan", "observe", "report", "plan", "report"]


def test_dialogue_makes_no_calls_after_its_end() -> None:
    planner = robots.ScriptPlanner()
    dialogue = Dialogue(planner, "greet")
    dialogue.end(failed("stopped"))
    with pytest.raises(RobotError, match="over"):
        dialogue.plan(["wave"])
    dialogue.report(OK)
    assert not dialogue.observe([fact(1)]) and not planner.calls


@pytest.mark.parametrize(
    ("skills", "plan", "outcome", "verdict", "stop", "text"),
    [
        (None, "wave", OK, OK, "executor_error", "skills"),
        (["wave"], None, OK, OK, "planner_error", "not a Decision"),
        (["wave"], "done", OK, True, "executor_error", "not an Outcome"),
        (["wave"], "wave", None, OK, "executor_error", "None"),
    ],
)
def test_value_of_a_wrong_type_ends_the_task_by_name(
    skills: list[str] | None, plan: str | None, outcome: object, verdict: object, stop: str, text: str
) -> None:
    session, planner, robot = scripted([plan], wave=lambda robot: outcome, judge=lambda: verdict)
    robot.skills = lambda: skills
    if plan is None:
        planner.plan = lambda instruction, skills: None
    report = session.run("greet")
    assert (report.stop, report.success) == (stop, False) and text in report.message


def lose_first_report() -> dict:
    """Return hooks that raise at the first report."""
    results = iter([ConnectionError("the connection was lost")])

    def report(outcome: Outcome) -> None:
        for error in results:
            raise error

    return {"report": report}


def test_failed_report_is_repeated_before_the_task_ends() -> None:
    """Otherwise the planner takes the failed decision for a success."""
    report, planner, _ = greet(["wave"], wave=lambda robot: NO_ARM, hooks=lose_first_report())
    assert report.stop == "planner_error" and planner.names == ["plan", "report", "report", "finish"]
    assert planner.reports == [NO_ARM] * 2 and planner.calls[-1] == ("finish", False)


def test_report_of_a_single_plan_can_be_repeated() -> None:
    planner = robots.ScriptPlanner(["wave"], lose_first_report())
    plans = SinglePlans(planner, PendingFacts())
    plans.next_plan("greet", ["wave"])()
    with pytest.raises(ConnectionError):
        plans.next_report(NO_ARM)()
    plans.next_report(NO_ARM)()
    assert planner.reports == [NO_ARM] * 2
    with pytest.raises(RobotError, match="report once"):
        plans.next_report(NO_ARM)


def test_long_or_invalid_message_of_a_robot_is_reported_in_part() -> None:
    planner = robots.ScriptPlanner(["wave"])
    dialogue = Dialogue(planner, "greet")
    dialogue.plan(["wave"])
    dialogue.report(failed("\ud800" + "x" * 5000))
    check_report(planner.reports[0], None)
    assert planner.reports == [failed("?" + "x" * 1999)]
