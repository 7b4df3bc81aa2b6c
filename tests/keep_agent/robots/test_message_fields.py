"""Invalid messages of a robot: ignored or answered without a traceback, and later messages are received."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from math import nan
from typing import Any

import pytest

from envs.outcome import Outcome, failed
from keep_agent.errors import DataError
from keep_agent.robots.ros.messages import field_at, flag_of, text_of
from keep_agent.robots.rosbridge.connection import Bridge
from keep_agent.robots.rosbridge.executor import RosbridgeExecutor
from keep_agent.robots.rosbridge.skill_clients import Fields
from tests.keep_agent.robots.bridge import SUCCEEDED, WAIT, StandIn
from tests.keep_agent.robots.test_rosbridge_executor import actionlib_robot, perform, wait_for_facts
from tests.keep_agent.robots.test_rosbridge_server import ACTION, Serve, goal, result

DEEP = "[" * 100_000
DATA = ("", "[{", "7", "[1, null]", '["\\ud800"]', '["go\\nhome"]', '[{"id": "\\ud800"}]', '[{"id": NaN}]', DEEP)
ODD: list[Any] = [None, 7, nan, [], "text", {}, {"data": None}, {"data": nan}, {"data": [1]}]
ODD += [{"data": data} for data in DATA]


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_invalid_facts_and_skills_are_ignored(robot: StandIn, bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    executor = RosbridgeExecutor(bridge, "/skills", timeout=WAIT)
    robot.subscribed("/facts", "/skills")
    for message in [*ODD, {"data": json.dumps({"id": "cup_2", "states": ["dirty"]})}]:
        robot.publish("/facts", message)
    for message in [*ODD, {"data": json.dumps(["nod", "bow"])}]:
        robot.publish("/skills", message)
    wait_for_facts(executor)
    assert [(fact.id, fact.states) for fact in executor.observe()] == [("cup_2", ("dirty",))]
    assert executor.skills() == ("nod", "bow")
    assert len([record for record in caplog.records if "ignored" in record.getMessage()]) >= 2 * len(ODD) - 1


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"success": True, "report": "a\ud800b"}, Outcome(True, "a?b")),
        ({"success": True, "report": None, "pose": {"x": nan}}, Outcome(True)),
        ({"success": False, "report": None}, failed("the robot says succeeded, but its success field is false")),
    ],
)
def test_result_with_unusual_fields_ends_a_skill(robot: StandIn, bridge: Bridge, values: Any, outcome: Outcome) -> None:
    executor = actionlib_robot(robot, bridge, 3, {"result": values})
    for message in (None, [], {"status": 4}, {"status": {"goal_id": []}}):
        robot.publish("/execute_skill/result", message)
        robot.publish("/execute_skill/feedback", message)
    assert executor.execute("wave", str) == outcome


def test_invalid_feedback_does_not_end_a_skill(robot: StandIn, bridge: Bridge) -> None:
    def act(goal: dict, feedback: Callable[[dict], None], cancelled: object) -> tuple[int, dict]:
        for values in ({}, {"current_status": nan}, {"current_status": "\ud800"}):
            feedback(values)
        return SUCCEEDED, {"success": True, "report": "done"}

    robot.actions["/execute_skill"] = act
    texts: list[str] = []
    assert perform(bridge, feedback=texts.append) == Outcome(True, "done") and texts == ["", "nan", "?"]


def test_invalid_requests_are_answered_and_invalid_goals_ignored(robot: StandIn, serve: Serve) -> None:
    serve()
    robot.subscribed("/keep_agent/facts", f"{ACTION}/goal")
    for args in (None, 7, [], "x", {"instruction": nan}, {"instruction": "greet", "skills": 7}, {"skills": [None]}):
        for service in ("plan", "report"):
            answer = robot.call(f"/keep_agent/{service}", args)
            assert not answer["ok"] and answer["report"]
    for message in [*ODD, {"goal_id": {"id": "x"}}, {"goal": {"task": "wave"}}, {"goal": 3, "goal_id": 3}]:
        for topic in ("/keep_agent/facts", f"{ACTION}/goal"):
            robot.publish(topic, message)
    goal(robot, "good", "greet")
    assert result(robot, "good")[0] == 3


def test_missing_field_is_an_error_or_an_empty_text() -> None:
    assert field_at({"a": {"b": 1}}, "a", "b") == 1
    for odd in (None, {}, {"a": None}, {"a": []}):
        with pytest.raises(DataError, match=r"a\.b"):
            field_at(odd, "a", "b")
        assert text_of(odd, "c") == ""
        with pytest.raises(DataError, match="no field 'c'"):
            flag_of(odd, "c")


@pytest.mark.parametrize("true", [True, 1, {"data": True}, {"data": 1}])
def test_flag_is_a_bool_a_uint8_or_a_bool_message(true: Any) -> None:
    false = {"data": False} if isinstance(true, dict) else type(true)(0)
    assert [flag_of({"ok": value}, "ok") for value in (true, false)] == [True, False]
    assert [Fields(ok="ok").outcome({"ok": value}, True, "no").ok for value in (true, false)] == [True, False]


NO_FLAGS: list[Any] = ["false", "False", "true", "0", "1", "failed", "", [False], [True], None, -1, 2, 1.0, nan, {}]
NO_FLAGS += [{"data": "false"}, {"data": [0]}, {"value": True}, {"data": True, "more": 1}]
NO_RESULTS = [{"success": value} for value in NO_FLAGS]
NO_RESULTS += [{}, {"sucess": True}, {"ok": True}, "Error: gripper", None, [], 5, nan, True]


@pytest.mark.parametrize("values", NO_RESULTS, ids=repr)
def test_result_without_a_flag_is_a_failure_with_its_value(values: Any) -> None:
    outcome = Fields().outcome(values, True, "the robot does not say why")
    assert not outcome.ok and "success" in outcome.message and "Fields(ok=" in outcome.message
    received = values["success"] if isinstance(values, dict) and "success" in values else values
    assert repr(received) in outcome.message


def test_result_with_the_flag_in_another_field_is_a_failure() -> None:
    outcome = Fields(ok="fine").outcome({"success": True, "report": "waved"}, True, "")
    assert not outcome.ok and "no field 'fine'" in outcome.message


@pytest.mark.parametrize("values", [{}, {"success": False}, {"pose": 1}, None])
def test_protocol_decides_without_a_flag_field(values: Any) -> None:
    fields = Fields(ok=None)
    assert fields.outcome(values, True, "") == Outcome(True)
    assert fields.outcome(values, False, "the robot says aborted") == failed("the robot says aborted")
