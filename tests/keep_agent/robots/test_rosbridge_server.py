"""Planner offered to a robot behind a simulated rosbridge."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from envs.outcome import Outcome, failed
from keep_agent.robots import RobotSession
from keep_agent.robots.rosbridge.action_server import BridgeActionServer, GoalEnd
from keep_agent.robots.rosbridge.connection import Bridge
from keep_agent.robots.rosbridge.executor import RosbridgeExecutor
from keep_agent.robots.rosbridge_server import RosbridgeServer
from keep_agent.robots.scripted import ScriptedPlanning
from tests.keep_agent.robots.bridge import WAIT, StandIn
from tests.keep_agent.robots.houses import CLEAN_MUG, clean_mug
from tests.keep_agent.robots.robots import QUICK, Gate, ScriptPlanner, ScriptRobot, later, until_cancelled
from tests.keep_agent.robots.ros import ROOT, SCRIPTED, free_port, process, refusal, wait_for_line

PREEMPTED, SUCCEEDED, ABORTED, REJECTED = 2, 3, 4, 5
ACTION = "/keep_agent/plan_and_execute"
GREET = {"instruction": "greet", "skills": ["wave", "nod", "done"]}
Serve = Callable[..., tuple[RosbridgeServer, ScriptPlanner, ScriptRobot]]


def goal(robot: StandIn, name: str, task: str = "wave", **fields: str) -> None:
    robot.subscribed(f"{ACTION}/goal", f"{ACTION}/cancel")
    stamp = {"secs": 1, "nsecs": 0}
    robot.publish(f"{ACTION}/goal", {"goal_id": {"id": name, "stamp": stamp}, "goal": {"task": task, **fields}})


def cancel(robot: StandIn, name: str) -> None:
    robot.publish(f"{ACTION}/cancel", {"id": name, "stamp": {"secs": 0, "nsecs": 0}})


def result(robot: StandIn, name: str) -> tuple[int, dict]:
    def find() -> dict | None:
        results = [result for result in robot.messages[f"{ACTION}/result"] if result["status"]["goal_id"]["id"] == name]
        assert len(results) <= 1, "one result per goal"
        return results[0] if results else None

    message = robot.until(find)
    return message["status"]["status"], message["result"]


def statuses(robot: StandIn) -> list[dict]:
    return [json.loads(message["data"]) for message in robot.messages["/keep_agent/status"]]


def last_status(robot: StandIn) -> dict:
    """Wait for the end of a task and return its status."""
    robot.until(lambda: statuses(robot) and statuses(robot)[-1]["stop"])
    return statuses(robot)[-1]


def request_task(robot: StandIn, task: str, *, expect_refusal: bool = False) -> None:
    robot.subscribed("/keep_agent/task", "/keep_agent/stop")
    robot.publish("/keep_agent/task", {"data": task})
    if expect_refusal:
        robot.until(lambda: any(status.get("refused") == task for status in statuses(robot)))


def waving(serve: Serve, robot: StandIn, **options: object) -> tuple[RosbridgeServer, ScriptPlanner, ScriptRobot]:
    """Serve a robot whose skill "wave" ends when it is cancelled, and send the goal "first"."""
    server, planner, body = serve(["wave"] * 9, wave=until_cancelled, **options)
    goal(robot, "first")
    assert body.started.wait(WAIT)
    return server, planner, body


def test_task_of_a_server_can_be_a_skill_of_an_executor(robot: StandIn, bridge: Bridge) -> None:
    house = clean_mug()
    with closing(RosbridgeServer(bridge, ScriptedPlanning(house), house, limits=QUICK, judge=house.judge)):
        executor = RosbridgeExecutor(bridge, [CLEAN_MUG], kind="ros1_action", name=ACTION)
        robot.subscribed(f"{ACTION}/result")
        report = RobotSession(ScriptPlanner([CLEAN_MUG]), executor, limits=QUICK).run("tidy up")
        last = last_status(robot)
    assert report.success and "success after" in report.steps[0].outcome.message
    texts = [message["feedback"]["current_status"] for message in robot.messages[f"{ACTION}/feedback"]]
    assert any(text.startswith("next: ") for text in texts)
    assert (last["state"], last["success"], last["instruction"]) == ("idle", True, CLEAN_MUG)


def test_goal_is_cancelled(robot: StandIn, serve: Serve) -> None:
    _, planner, body = waving(serve, robot)
    cancel(robot, "another")
    cancel(robot, "first")
    status, values = result(robot, "first")
    assert (status, values["success"]) == (PREEMPTED, False) and not body.running
    assert planner.reports == [failed("cancelled")]


def test_new_goal_replaces_the_old_one(robot: StandIn, serve: Serve) -> None:
    _, planner, body = waving(serve, robot)
    planner.script = ["wave", "wave", "done"]
    body.deeds.clear()  # the second time it succeeds
    goal(robot, "second", "wave again")
    assert [result(robot, name)[0] for name in ("first", "second")] == [PREEMPTED, SUCCEEDED]


@pytest.mark.parametrize("task", ["wave", " "])
def test_failed_goal_is_aborted(robot: StandIn, serve: Serve, task: str) -> None:
    serve([ValueError("no idea")])
    goal(robot, "first", task)
    status, values = result(robot, "first")
    assert status == ABORTED and "no idea" in values["report"]


@pytest.mark.parametrize("distribution", ["ros1", "ros2"])
def test_topics_of_standard_types_begin_and_stop_a_task(robot: StandIn, serve: Serve, distribution: str) -> None:
    _, _, body = serve(["wave"] * 9, wave=until_cancelled, distribution=distribution)
    request_task(robot, "wave")
    assert body.started.wait(WAIT)
    request_task(robot, "nod", expect_refusal=True)
    robot.publish("/keep_agent/stop", {"data": "mind the cat"})
    last = last_status(robot)
    assert last["stop"] == "stopped" and "mind the cat" in last["report"]


def test_services_plan_and_report(robot: StandIn, serve: Serve) -> None:
    _, planner, _ = serve(["wave", "nod"])
    robot.subscribed("/keep_agent/facts")
    robot.publish("/keep_agent/facts", {"data": json.dumps([{"id": "mug_1"}])})
    assert robot.call("/keep_agent/plan", GREET) == {"skill": "wave", "ok": True, "report": ""}
    assert robot.call("/keep_agent/report", {"ok": False, "message": "no arm"}) == {"ok": True, "report": ""}
    assert [robot.call("/keep_agent/plan", GREET)["skill"] for _ in range(2)] == ["nod", "done"]
    assert not robot.call("/keep_agent/plan", {})["ok"]
    assert planner.reports == [failed("no arm"), Outcome(True), Outcome(True)] and planner.count("observe") == 1


@pytest.mark.parametrize("request_", [{"ok": "true"}, {"ok": None}, {"success": True}, {}, {"ok": -1, "message": "x"}])
def test_report_without_a_valid_flag_counts_as_a_failure(robot: StandIn, serve: Serve, request_: dict) -> None:
    _, planner, _ = serve(["wave"])
    robot.call("/keep_agent/plan", GREET)
    answer = robot.call("/keep_agent/report", request_)
    assert not answer["ok"] and "ok" in answer["report"]
    assert planner.reports == [failed(answer["report"])]


def test_services_are_advertised_after_a_reconnection(robot: StandIn, serve: Serve) -> None:
    serve(["wave"])
    robot.until(lambda: robot.advertised.count("/keep_agent/plan") == 1)
    robot.cut()
    robot.until(lambda: robot.advertised.count("/keep_agent/plan") == 2)
    assert robot.call("/keep_agent/plan", GREET)["skill"] == "wave"


def test_stop_ends_a_task_that_waits_for_a_single_plan(robot: StandIn, serve: Serve) -> None:
    think = Gate()
    server, _, body = serve([think, "wave"])
    robot.request("/keep_agent/plan", {"instruction": "a", "skills": ["wave"]})
    assert think.entered.wait(WAIT)
    request_task(robot, "greet")
    robot.until(lambda: server.service.session._stop_requested is not None)
    request_task(robot, "another", expect_refusal=True)
    robot.publish("/keep_agent/stop", {"data": "mind the cat"})
    assert last_status(robot)["report"].endswith("stopped (mind the cat)")
    think.open.set()
    server.close()
    assert body.executed == []


def test_goal_sent_during_close_does_not_move_the_robot(robot: StandIn, serve: Serve) -> None:
    """A behaviour tree sends a goal again after its end."""
    server, _, body = waving(serve, robot)
    robot.listeners[f"{ACTION}/result"] = lambda message: goal(robot, "second")
    server.close()
    assert result(robot, "first")[0] == ABORTED
    assert body.executed == ["wave"] and not body.running


def test_every_heartbeat_has_the_goals_that_have_begun(robot: StandIn, serve: Serve) -> None:
    """A client takes a missing goal for lost, and ignores its result."""
    serve()
    for number in range(20):
        goal(robot, str(number), "greet")
        result(robot, str(number))
    beats = [[goal["goal_id"]["id"] for goal in beat["status_list"]] for beat in robot.messages[f"{ACTION}/status"]]
    for number in map(str, range(19)):
        first = next(index for index, names in enumerate(beats) if number in names)
        assert number in beats[first + 1]


def test_result_of_a_lost_connection_is_sent_after_a_reconnection(robot: StandIn, bridge: Bridge, serve: Serve) -> None:
    server, _, _ = waving(serve, robot)
    loss = Event()
    bridge.on_lost(loss.set)
    robot.cut()
    assert loss.wait(WAIT)
    server.service.stop("mind the cat")
    assert result(robot, "first")[0] == ABORTED


def test_waiting_and_later_goals_of_a_closed_server_are_rejected(robot: StandIn, bridge: Bridge) -> None:
    success = {"success": True, "report": ""}
    work = Gate(GoalEnd(SUCCEEDED, "", success))
    server = BridgeActionServer(bridge, ACTION, "keep_agent_msgs/TaskAction", work, lambda: None)
    goal(robot, "runs")
    assert work.entered.wait(WAIT)
    goal(robot, "waits")
    robot.until(lambda: server._next is not None)
    closing = later(lambda: server.close(WAIT))
    robot.until(lambda: server._closed)
    work.open.set()
    closing.result(WAIT)
    assert result(robot, "runs") == (SUCCEEDED, success)
    goal(robot, "late")
    for name in ("waits", "late"):
        status, values = result(robot, name)
        assert status == REJECTED and "send the goal again" in values["report"]


def command(port: int, *options: Any) -> list[str]:
    program = [sys.executable, "-m", "keep_agent.robots.rosbridge_server", "--host", "127.0.0.1", "--port", str(port)]
    return [*program, *SCRIPTED, *map(str, options)]


def test_command_serves_and_ends(robot: StandIn, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = command(robot.port, "--executor", "tests.keep_agent.robots.houses:clean_mug", "--timeout", WAIT)
    with process(options, os.environ | {"PYTHONPATH": str(ROOT)}, log) as server:
        wait_for_line(log, "listening on", server)
        robot.until(lambda: robot.messages[f"{ACTION}/status"])
        goal(robot, "first", "", description=CLEAN_MUG)
        assert result(robot, "first")[0] == SUCCEEDED
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(WAIT) == 130


def test_command_reports_a_missing_rosbridge() -> None:
    # the time limit for a connection is roslibpy's: a port that refuses takes as long as a silent one
    port = free_port()
    assert f"no rosbridge answers at 127.0.0.1:{port} within 0.3 s" in refusal(command(port, "--timeout", 0.3))
