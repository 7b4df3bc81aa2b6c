from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from threading import Event

import pytest

from envs.fact import Fact
from envs.outcome import Outcome, failed
from keep_agent.errors import CapacityError, DataError
from keep_agent.robots.executor import read_facts
from keep_agent.robots.service import RobotService, ServiceReply
from tests.keep_agent.robots import robots
from tests.keep_agent.robots.robots import QUICK, WAIT, Gate, ScriptPlanner, fact, limited, limits, service_of
from tests.waiting import until

SKILLS = ["wave", "nod", "done"]
OVERTAKEN = failed("another task or plan has begun")


def test_plan_without_a_report_counts_as_carried_out() -> None:
    service, planner, _ = service_of(["wave", "nod"])
    assert [service.plan("greet", SKILLS).skill for _ in range(3)] == ["wave", "nod", "done"]
    assert planner.names == ["plan", "report"] * 3, "the report on done ends a task"


def test_plan_has_one_report() -> None:
    service, planner, _ = service_of(["wave"])
    assert not service.report(True, "").ok
    service.plan("greet", SKILLS)
    assert service.report(False, "no arm") == ServiceReply(True)
    assert not service.report(True, "").ok
    assert planner.reports == [failed("no arm")]


@pytest.mark.parametrize(("instruction", "skills"), [("", SKILLS), (" ", SKILLS), ("greet", [])])
def test_plan_needs_instruction_and_skills(instruction: str, skills: list[str]) -> None:
    service, planner, _ = service_of(["wave"])
    answer = service.plan(instruction, skills)
    assert not answer.ok and "instruction and skills" in answer.report
    assert planner.calls == []


def test_error_of_the_planner_becomes_an_answer() -> None:
    service, _, _ = service_of([ValueError("no idea"), "wave"])
    assert service.plan("greet", SKILLS) == ServiceReply(False, "ValueError: no idea")
    assert service.plan("greet", SKILLS) == ServiceReply(True, skill="wave")


def test_planner_that_answers_too_late_receives_the_end_of_its_task() -> None:
    think = Gate()
    service, planner, _ = service_of([think, "wave"], limits=limits(answer=0.05))
    with limited("plan", hangs=think.entered):
        assert "did not answer within 0.05 s" in service.plan("greet", SKILLS).report
    service.session.limits = QUICK
    assert "still running" in service.plan("greet", SKILLS).report
    assert "no plan" in service.report(True, "").report
    think.open.set()
    assert robots.all_return(service.session)
    assert "no plan" in service.report(True, "").report, "the caller never received the decision"
    assert service.plan("greet", SKILLS).skill == "wave"
    assert planner.reports == [failed("the answer came too late")]
    assert planner.calls[2] == ("finish", False) and planner.count("finish") == 1


def test_task_ends_single_plans() -> None:
    service, planner, _ = service_of(["wave", "nod"])
    service.plan("greet", SKILLS)
    assert service.run("bow").success
    assert planner.calls[1:3] == [("report", OVERTAKEN), ("finish", False)]
    assert not service.report(True, "").ok


def test_second_task_or_plan_is_refused_during_a_task() -> None:
    service, _, robot = service_of(["wave"], wave=robots.until_cancelled)
    task = robots.later(lambda: service.run("greet"))
    assert robot.started.wait(WAIT)
    busy, answer = service.run("another"), service.plan("greet", SKILLS)
    assert (busy.stop, answer.ok) == ("busy", False)
    assert all("a task is running" in text for text in (busy.message, answer.report))
    service.stop("enough")
    assert task.result(WAIT).stop == "stopped"


def test_goal_cancelled_before_it_began_does_nothing() -> None:
    """A failing watcher hides the status from no other watcher."""
    statuses = []
    service, _, robot = service_of(["wave"], watch=robots.fail, send=statuses.append)
    assert service.run("greet", stopped=lambda: True).stop == "stopped"
    assert robot.executed == [] and json.loads(statuses[-1])["stop"] == "stopped"


def test_facts_as_json_join_those_of_the_robot() -> None:
    service, planner, _ = service_of((), [fact(1)])
    service.facts(json.dumps([{"id": "cup_2", "place": "sink_1", "states": ["dirty"]}]))
    service.facts('{"id": "fridge_1", "category": "receptacle"}')
    service.facts("nonsense")
    service.run("greet")
    [facts] = planner.facts
    cup, fridge = ("cup_2", "cup", "object", ("dirty",)), ("fridge_1", "fridge", "receptacle", ())
    values = [(fact.id, fact.type, fact.category, fact.states) for fact in facts]
    assert values == [cup, fridge, ("mug_1", "mug", "object", ())]


def test_failure_without_a_reason_has_a_feedback_text() -> None:
    service, planner, _ = service_of(["nod"], nod=lambda robot: failed(""))
    feedback = list[str]()
    service.run("greet", feedback.append)
    assert "nod: failed: it did not work" in feedback and planner.reports == [failed(""), Outcome(True)]


def test_status_follows_the_task() -> None:
    texts: list[str] = []
    service, _, _ = service_of(["wave", "nod"], nod=lambda robot: failed("stiff"), send=texts.append)
    service.announce()
    service.run("greet")
    first, *statuses = map(json.loads, texts)
    assert first["state"] == "idle"
    assert [(status["state"], status["step"], status["skill"], status["ok"]) for status in statuses] == [
        ("planning", 0, "", None),
        ("executing", 1, "wave", None),
        ("executing", 1, "wave", None),  # feedback of the robot
        ("planning", 1, "wave", True),
        ("executing", 2, "nod", True),
        ("executing", 2, "nod", True),
        ("planning", 2, "nod", False),
        ("planning", 2, "done", False),
        ("idle", 2, "done", False),
    ]
    assert statuses[-3]["message"] == "stiff"
    assert (statuses[-1]["success"], statuses[-1]["stop"]) == (True, "done")


@pytest.mark.parametrize("fault", ["nonsense", "error", "late"])
def test_facts_wait_after_a_failed_plan(fault: str) -> None:
    think = Gate()
    service, planner, _ = service_of([think, "nod"] if fault == "late" else ["wave"])
    service.session.limits = limits(answer=0.05 if fault == "late" else WAIT)
    service.facts('{"id": "mug_1"}')
    if fault == "error":
        planner.hooks["observe"] = robots.fail
    with limited("plan", hangs=think.entered) if fault == "late" else nullcontext():
        assert not service.plan("" if fault == "nonsense" else "greet", SKILLS).ok
    planner.hooks.clear()
    service.session.limits = QUICK
    think.open.set()
    assert robots.all_return(service.session)
    assert service.plan("greet", SKILLS).ok
    assert [fact.id for facts in planner.facts for fact in facts] == ["mug_1"] * (1 + (fault == "error"))


def test_waiting_fact_does_not_replace_a_newer_one() -> None:
    service, planner, _ = service_of((), [fact(1)], hooks={"observe": robots.fail})
    service.run("greet")
    service.facts('{"id": "mug_1", "place": "sink_1"}')
    planner.hooks.clear()
    service.run("greet")
    assert [[fact.place for fact in facts] for facts in planner.facts] == [["table_1"], ["sink_1"]]


def test_refused_fact_does_not_block_the_others() -> None:
    accepted: list[str] = []

    def refuse(facts: tuple[Fact, ...]) -> None:
        if any(fact.id == "mug_13" for fact in facts):
            raise DataError("mug_13 was a receptacle before")
        accepted.extend(fact.id for fact in facts)

    service, _, _ = service_of((), [fact(number) for number in range(250)], hooks={"observe": refuse})
    assert service.run("greet").success
    assert accepted == [f"mug_{number}" for number in range(250) if number != 13]


def test_facts_without_room_follow_after_removed_things() -> None:
    known = {"mug_8", "mug_9"}

    def observe(facts: tuple[Fact, ...]) -> None:
        if len(known | {fact.id for fact in facts}) > 2:
            raise CapacityError("2 things are allowed")
        known.update(fact.id for fact in facts)
        known.difference_update(fact.id for fact in facts if fact.gone)

    removed = [replace(fact(8), gone=True), replace(fact(9), gone=True)]
    service, _, _ = service_of((), [fact(1), fact(2), *removed], hooks={"observe": observe})
    report = service.run("greet")
    assert report.stop == "planner_error" and "2 things are allowed" in report.message
    assert service.run("greet").success
    assert known == {"mug_1", "mug_2"}


def thinking() -> tuple[RobotService, ScriptPlanner, Future[ServiceReply], Event]:
    """Make a service during a plan, which returns after the event."""
    think = Gate()
    service, planner, _ = service_of([think, "nod"])
    plan = robots.later(lambda: service.plan("greet", SKILLS))
    assert think.entered.wait(WAIT)
    return service, planner, plan, think.open


def test_plan_that_a_task_overtakes_is_not_returned() -> None:
    """Otherwise caller and task would both move the robot."""
    service, planner, plan, answer = thinking()
    task = robots.later(lambda: service.run("bow"))
    until(lambda: len(service.session._calls) > 1)
    until(lambda: service.session._single_plans._dialogue is None)
    answer.set()
    assert not plan.result(WAIT).ok
    assert task.result(WAIT).success
    assert planner.reports[0] == OVERTAKEN


def test_plan_is_not_returned_after_a_task_that_ran_since(monkeypatch: pytest.MonkeyPatch) -> None:
    service, planner, _ = service_of(["wave"])
    bounded, late = service.session._call_planner, Gate()

    def delayed(*arguments: object) -> object:
        late.result = bounded(*arguments)
        return late()

    monkeypatch.setattr(service.session, "_call_planner", delayed)
    plan = robots.later(lambda: service.plan("greet", SKILLS))
    assert late.entered.wait(WAIT)
    assert service.run("bow").success
    late.open.set()
    assert not plan.result(WAIT).ok and planner.reports[0] == OVERTAKEN


def test_closing_ends_a_plan() -> None:
    service, planner, plan, answer = thinking()
    closed = robots.later(service.session.close)
    until(lambda: len(service.session._calls) > 1)
    assert not closed.done()
    answer.set()
    assert closed.result(WAIT) and not plan.result(WAIT).ok
    assert planner.calls[-1] == ("finish", False) and planner.count("finish") == 1


def test_late_plan_of_another_task_is_not_reported_as_carried_out() -> None:
    """The planner is still busy with the last report of the previous task."""
    dialogues = []
    service, planner, _ = service_of(["wave", "nod", "wave"])
    report = Gate()

    def slow_report(outcome: Outcome) -> None:
        dialogues.append(service.session._single_plans._dialogue)
        report()

    assert service.plan("greet", SKILLS).ok
    planner.hooks["report"], service.session.limits = slow_report, limits(answer=0.05)
    with limited("plan", hangs=report.entered):
        second = robots.later(lambda: service.plan("bow", SKILLS))
        assert report.entered.wait(WAIT)
        assert not second.result(WAIT).ok
    until(lambda: dialogues[0]._ending is not None)  # before that, the planner would still plan
    report.open.set()
    assert robots.all_return(service.session)
    planner.hooks.clear()
    service.session.limits = QUICK
    assert service.plan("bow", SKILLS).ok
    assert planner.reports == [Outcome(True)] and planner.count("plan") == 2


def test_closed_service_refuses_calls() -> None:
    service, planner, _ = service_of(["wave"])
    service.close()
    assert str(service.run("greet")).endswith("stopped (the planner is shut down)")
    assert service.plan("greet", SKILLS) == ServiceReply(False, "the planner is shut down")
    assert planner.calls == []


@pytest.mark.parametrize("text", ["", "{", "3", '["a"]', "[{}]", '[{"id": 3}]', '[{"id": "a", "b": 1}]', "[" * 100_000])
def test_invalid_facts_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_facts(text)
