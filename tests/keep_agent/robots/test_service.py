"""The service that all wires share: single plans, facts as JSON, the status, and who may talk to the planner."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from threading import Event

import pytest

from envs.outcome import Outcome, failed
from keep_agent.errors import CapacityError, DataError
from keep_agent.robots.executor import read_facts
from keep_agent.robots.service import Answer, RobotService
from tests.keep_agent.robots.robots import (
    QUICK,
    WAIT,
    ScriptPlanner,
    ScriptRobot,
    fact,
    later,
    limited,
    limits,
    offered,
    until_cancelled,
)
from tests.waiting import until

SKILLS = ["wave", "nod", "done"]


def test_a_plan_nobody_reported_on_was_carried_out() -> None:
    service, planner = offered(["wave", "nod"])
    assert [service.plan("greet", SKILLS).skill for _ in range(3)] == ["wave", "nod", "done"]
    assert [call[0] for call in planner.calls] == ["plan", "report"] * 3
    assert planner.named("finish") == [], "done was reported, and that ends a task"


def test_a_plan_is_reported_on_once() -> None:
    service, planner = offered(["wave"])
    assert not service.report(True, "").ok
    service.plan("greet", SKILLS)
    assert service.report(False, "no arm") == Answer(True)
    assert not service.report(True, "").ok
    assert planner.named("report") == [(failed("no arm"),)]


@pytest.mark.parametrize(("instruction", "skills"), [("", SKILLS), (" ", SKILLS), ("greet", [])])
def test_nonsense_is_answered(instruction: str, skills: list[str]) -> None:
    planner = ScriptPlanner(["wave"])
    answer = RobotService(planner, ScriptRobot(), limits=QUICK).plan(instruction, skills)
    assert not answer.ok and "instruction and skills" in answer.report
    assert planner.calls == []


def test_a_planner_that_fails_is_answered_for() -> None:
    service = RobotService(ScriptPlanner([ValueError("no idea"), "wave"]), ScriptRobot(), limits=QUICK)
    assert service.plan("greet", SKILLS) == Answer(False, "ValueError: no idea")
    assert service.plan("greet", SKILLS) == Answer(True, skill="wave")


def slow(asked: Event, answer: Event) -> Callable[[], str]:
    """A decision that comes with ``answer``."""

    def think() -> str:
        asked.set()
        return "wave" if answer.wait(WAIT) else ""

    return think


def test_a_planner_that_does_not_answer_hears_the_end_when_it_does() -> None:
    asked, answer = Event(), Event()
    service, planner = offered([slow(asked, answer), "wave"], limits=limits(answer=0.05))
    with limited("plan", hangs=asked):
        assert "did not answer within 0.05 s" in service.plan("greet", SKILLS).report
    service.session.limits = QUICK
    assert "still at work" in service.plan("greet", SKILLS).report
    assert "no plan" in service.report(True, "").report
    answer.set()
    assert all(call.wait(WAIT) for call in service.session._calls)
    assert "no plan" in service.report(True, "").report, "its caller never got the decision"
    assert service.plan("greet", SKILLS).skill == "wave"
    assert planner.named("report") == [(failed("the answer came too late"),)]
    assert planner.named("finish") == [(False,)]


def test_a_task_ends_what_single_plans_began() -> None:
    service, planner = offered(["wave", "nod"])
    service.plan("greet", SKILLS)
    assert service.run("bow").success
    said = [call for call in planner.calls if call[0] in ("report", "finish")]
    assert said[:2] == [("report", failed("something else was begun")), ("finish", False)]
    assert not service.report(True, "").ok


def test_two_tasks_do_not_mix() -> None:
    body = ScriptRobot(deeds={"wave": until_cancelled})
    service = RobotService(ScriptPlanner(["wave"]), body, limits=QUICK)
    future = later(lambda: service.run("greet"))
    assert body.begun.wait(WAIT)
    assert service.run("another").stop == "busy"
    assert not service.plan("greet", SKILLS).ok
    service.stop("enough")
    assert future.result(WAIT).stop == "stopped"


def test_a_goal_that_was_cancelled_before_it_began_does_nothing() -> None:
    body = ScriptRobot()
    report = RobotService(ScriptPlanner(["wave"]), body, limits=QUICK).run("greet", stopped=lambda: True)
    assert report.stop == "stopped"
    assert body.executed == []


def test_facts_from_outside_join_those_of_the_robot() -> None:
    service, planner = offered((), facts=[fact(1)])
    service.facts(json.dumps([{"id": "cup_2", "place": "sink_1", "states": ["dirty"]}]))
    service.facts("nonsense")
    service.run("greet")
    [(facts,)] = planner.named("observe")
    assert [(one.id, one.type, one.states) for one in facts] == [("cup_2", "cup", ("dirty",)), ("mug_1", "mug", ())]


def test_a_failure_without_a_reason_is_said_and_reported_as_one() -> None:
    planner, said = ScriptPlanner(["nod"]), list[str]()
    service = RobotService(planner, ScriptRobot(deeds={"nod": lambda robot: failed("")}), limits=QUICK)
    service.run("greet", said.append)
    assert "nod: failed: it did not work" in said
    assert [outcome for (outcome,) in planner.named("report")] == [failed(""), Outcome(True)]


def test_the_status_tells_where_a_task_stands() -> None:
    told: list[dict] = []
    body = ScriptRobot(deeds={"nod": lambda robot: failed("stiff")})
    service = RobotService(
        ScriptPlanner(["wave", "nod"]), body, limits=QUICK, tell=lambda text: told.append(json.loads(text))
    )
    service.announce()
    assert told[0]["state"] == "idle"
    service.run("greet")
    story = [(one["state"], one["step"], one["skill"], one["ok"]) for one in told[1:]]
    assert story == [
        ("planning", 0, "", None),
        ("executing", 1, "wave", None),
        ("executing", 1, "wave", None),  # what the robot says
        ("planning", 1, "wave", True),
        ("executing", 2, "nod", True),
        ("executing", 2, "nod", True),
        ("planning", 2, "nod", False),
        ("planning", 2, "done", False),
        ("idle", 2, "done", False),
    ]
    assert told[-3]["message"] == "stiff"
    assert (told[-1]["success"], told[-1]["stop"]) == (True, "done")


@pytest.mark.parametrize("wrong", ["nonsense", "error", "late"])
def test_facts_are_not_lost_with_a_plan_that_went_wrong(wrong: str) -> None:
    asked, answer = Event(), Event()
    planner = ScriptPlanner([slow(asked, answer), "nod"] if wrong == "late" else ["wave"])
    observe = planner.observe
    service = RobotService(planner, ScriptRobot(), limits=limits(answer=0.05 if wrong == "late" else WAIT))
    service.facts('{"id": "mug_1"}')
    if wrong == "error":
        planner.observe = lambda facts: 1 / 0
    with limited("plan", hangs=asked) if wrong == "late" else nullcontext():
        assert not service.plan("" if wrong == "nonsense" else "greet", SKILLS).ok
    planner.observe, service.session.limits = observe, QUICK
    answer.set()
    assert all(call.wait(WAIT) for call in service.session._calls)
    assert service.plan("greet", SKILLS).ok
    assert [fact.id for facts in planner.named("observe") for fact in facts[0]] == ["mug_1"]


def test_a_fact_that_the_planner_refuses_does_not_stop_the_others() -> None:
    class Picky(ScriptPlanner):
        def observe(self, facts) -> None:
            if any(one.id == "mug_13" for one in facts):
                raise DataError("mug_13 was a receptacle before")
            super().observe(facts)

    planner = Picky()
    service = RobotService(planner, ScriptRobot(facts=[fact(number) for number in range(250)]), limits=QUICK)
    assert service.run("greet").success
    told = [one.id for facts in planner.named("observe") for one in facts[0]]
    assert told == [f"mug_{number}" for number in range(250) if number != 13]


def test_what_is_gone_makes_room_for_what_did_not_fit() -> None:
    known = {"mug_8", "mug_9"}

    class Small(ScriptPlanner):
        def observe(self, facts) -> None:
            if len(known | {one.id for one in facts}) > 2:
                raise CapacityError("2 things are allowed")
            known.update(one.id for one in facts)
            known.difference_update(one.id for one in facts if one.gone)

    planner = Small()
    new, left = [fact(1), fact(2)], [replace(fact(8), gone=True), replace(fact(9), gone=True)]
    service = RobotService(planner, ScriptRobot(facts=[*new, *left]), limits=QUICK)
    report = service.run("greet")
    assert report.stop == "planner_error" and "2 things are allowed" in report.message
    assert service.run("greet").success
    assert known == {"mug_1", "mug_2"}


def test_an_older_fact_that_waited_does_not_take_the_place_of_a_newer_one() -> None:
    planner = ScriptPlanner()
    observe, planner.observe = planner.observe, lambda facts: 1 / 0
    body = ScriptRobot(facts=[fact(1)])
    service = RobotService(planner, body, limits=QUICK)
    service.run("greet")
    service.facts('{"id": "mug_1", "place": "sink_1"}')
    planner.observe = observe
    service.run("greet")
    assert [one.place for facts in planner.named("observe") for one in facts[0]] == ["sink_1"]


def thinking(answer: Event) -> tuple[RobotService, ScriptPlanner, Future[Answer]]:
    """A service with a plan under way, whose decision comes with ``answer``."""
    asked = Event()
    service, planner = offered([slow(asked, answer), "nod"])
    plan = later(lambda: service.plan("greet", SKILLS))
    assert asked.wait(WAIT)
    return service, planner, plan


def test_a_plan_that_a_task_overtakes_is_not_handed_out() -> None:
    """Else the robot would be moved by two."""
    answer = Event()
    service, planner, plan = thinking(answer)
    task = later(lambda: service.run("bow"))
    until(lambda: len(service.session._calls) > 1)
    until(lambda: service.session._plans._dialogue is None)
    answer.set()
    assert not plan.result(WAIT).ok
    assert task.result(WAIT).success
    assert planner.named("report")[0] == (failed("something else was begun"),)


def test_a_plan_whose_caller_is_late_is_not_handed_out_behind_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, decided, over = ScriptPlanner(["wave"]), Event(), Event()
    service = RobotService(planner, ScriptRobot(), limits=QUICK)
    bounded = service.session._bounded

    def late(*given: object) -> object:
        decision = bounded(*given)
        decided.set()
        assert over.wait(WAIT)
        return decision

    monkeypatch.setattr(service.session, "_bounded", late)
    plan = later(lambda: service.plan("greet", SKILLS))
    assert decided.wait(WAIT)
    assert service.run("bow").success
    over.set()
    assert not plan.result(WAIT).ok
    assert planner.named("report")[0] == (failed("something else was begun"),)


def test_closing_ends_a_plan_as_well() -> None:
    answer = Event()
    service, planner, plan = thinking(answer)
    closed = later(service.session.close)
    until(lambda: len(service.session._calls) > 1)
    assert not closed.done()
    answer.set()
    assert closed.result(WAIT) and not plan.result(WAIT).ok
    assert planner.named("finish") == [(False,)]


def test_a_plan_of_another_task_that_came_too_late_is_not_reported_as_carried_out() -> None:
    """While the planner still hears how the last one ended."""
    told, hear, bowing = Event(), Event(), []
    planner = ScriptPlanner(["wave", "nod", "wave"])
    report = planner.report

    def hears(outcome: Outcome) -> None:
        bowing.append(service.session._plans._dialogue)
        told.set()
        assert hear.wait(WAIT)
        report(outcome)

    service = RobotService(planner, ScriptRobot(), limits=QUICK)
    assert service.plan("greet", SKILLS).ok
    planner.report, service.session.limits = hears, limits(answer=0.05)
    with limited("plan", hangs=told):
        second = later(lambda: service.plan("bow", SKILLS))
        assert told.wait(WAIT)
        assert not second.result(WAIT).ok
    until(lambda: bowing[0]._ending is not None)  # else the planner would still be asked
    hear.set()
    assert all(call.wait(WAIT) for call in service.session._calls)
    planner.report, service.session.limits = report, QUICK
    assert service.plan("bow", SKILLS).ok
    assert [outcome.ok for (outcome,) in planner.named("report")] == [True]
    assert len(planner.named("plan")) == 2


def test_a_watcher_that_fails_hides_nothing_from_the_others() -> None:
    body, told = ScriptRobot(), []
    service = RobotService(ScriptPlanner(["wave"]), body, limits=QUICK, watch=lambda event: 1 / 0, tell=told.append)
    assert service.run("greet", stopped=lambda: True).stop == "stopped"
    assert body.executed == []
    assert json.loads(told[-1])["stop"] == "stopped"


def test_a_planner_that_breaks_on_facts_hears_of_them_again() -> None:
    planner = ScriptPlanner()
    observe, planner.observe = planner.observe, lambda facts: 1 / 0
    service = RobotService(planner, ScriptRobot(facts=[fact(1)]), limits=QUICK)
    assert service.run("greet").stop == "planner_error"
    planner.observe = observe
    assert service.run("greet").success
    assert planner.named("observe") == [((fact(1),),)]


def test_nothing_begins_when_the_service_is_closed() -> None:
    service, planner = offered(["wave"])
    service.close()
    assert str(service.run("greet")).endswith("stopped (the planner is shut down)")
    assert service.plan("greet", SKILLS) == Answer(False, "the planner is shut down")
    assert planner.calls == []


@pytest.mark.parametrize(
    "text", ["", "{", "3", '["mug"]', "[{}]", '[{"id": 3}]', '[{"id": "a", "colour": "red"}]', "[" * 100_000]
)
def test_facts_that_are_none_are_named(text: str) -> None:
    with pytest.raises(DataError):
        read_facts(text)


def test_one_fact_needs_no_array() -> None:
    [one] = read_facts('{"id": "fridge_1", "category": "receptacle", "states": ["open"]}')
    assert (one.type, one.category, one.states) == ("fridge", "receptacle", ("open",))
