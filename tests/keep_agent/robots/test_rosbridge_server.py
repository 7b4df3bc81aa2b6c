"""Our planner offered over a rosbridge's protocol to a robot that a test plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from envs.outcome import Outcome, failed
from keep_agent.robots import RobotSession, SymbolicExecutor
from keep_agent.robots.rosbridge.action_server import BridgeActionServer, End
from keep_agent.robots.rosbridge.connection import Bridge
from keep_agent.robots.rosbridge.executor import RosbridgeExecutor
from keep_agent.robots.rosbridge_server import RosbridgeServer
from keep_agent.robots.scripted import ScriptedPlanning
from tests.keep_agent.robots.bridge import WAIT, StandIn
from tests.keep_agent.robots.houses import CLEAN_MUG, clean_mug
from tests.keep_agent.robots.robots import QUICK, ScriptPlanner, ScriptRobot, until_cancelled
from tests.keep_agent.robots.ros import ROOT, free_port, process, wait_for_line

PREEMPTED, SUCCEEDED, ABORTED, REJECTED = 2, 3, 4, 5
ACTION = "/keep_agent/plan_and_execute"


def goal(robot: StandIn, name: str, task: str, **more: str) -> None:
    robot.subscribed(f"{ACTION}/goal", f"{ACTION}/cancel")
    stamp = {"secs": 1, "nsecs": 0}
    robot.publish(f"{ACTION}/goal", {"goal_id": {"id": name, "stamp": stamp}, "goal": {"task": task, **more}})


def cancel(robot: StandIn, name: str) -> None:
    robot.publish(f"{ACTION}/cancel", {"id": name, "stamp": {"secs": 0, "nsecs": 0}})


def result(robot: StandIn, name: str) -> tuple[int, dict]:
    def found() -> dict | None:
        mine = [one for one in robot.heard[f"{ACTION}/result"] if one["status"]["goal_id"]["id"] == name]
        assert len(mine) <= 1, "one result per goal"
        return mine[0] if mine else None

    message = robot.until(found)
    return message["status"]["status"], message["result"]


def statuses(robot: StandIn) -> list[dict]:
    return [json.loads(message["data"]) for message in robot.heard["/keep_agent/status"]]


def settled(robot: StandIn) -> dict:
    robot.until(lambda: statuses(robot) and statuses(robot)[-1]["stop"])
    return statuses(robot)[-1]


def scripted(bridge: Bridge, executor: SymbolicExecutor) -> RosbridgeServer:
    return RosbridgeServer(bridge, ScriptedPlanning(executor), executor, limits=QUICK, judge=executor.judge)


def test_a_goal_is_reached(robot: StandIn, bridge: Bridge) -> None:
    server = scripted(bridge, clean_mug())
    robot.until(lambda: robot.heard[f"{ACTION}/status"])
    goal(robot, "first", "", description=CLEAN_MUG)
    status, told = result(robot, "first")
    assert (status, told["success"]) == (SUCCEEDED, True)
    assert "success after" in told["report"]
    said = [one["feedback"]["current_status"] for one in robot.heard[f"{ACTION}/feedback"]]
    assert any(text.startswith("next: ") for text in said)
    last = settled(robot)
    assert (last["state"], last["success"], last["instruction"]) == ("idle", True, CLEAN_MUG)
    server.close()


def test_our_own_executor_can_be_behind_it(robot: StandIn, bridge: Bridge) -> None:
    """A planner whose one skill is a whole task of another: both ends of the bridge at once."""
    server = scripted(bridge, clean_mug())
    executor = RosbridgeExecutor(bridge, [CLEAN_MUG], kind="ros1_action", name=ACTION)
    robot.subscribed(f"{ACTION}/result")
    report = RobotSession(ScriptPlanner([CLEAN_MUG]), executor, limits=QUICK).run("tidy up")
    assert report.success
    assert "success after" in report.steps[0].outcome.message
    server.close()


def hanging(bridge: Bridge, **choices: object) -> tuple[RosbridgeServer, ScriptRobot, ScriptPlanner]:
    planner, body = ScriptPlanner(["wave"] * 9), ScriptRobot(deeds={"wave": until_cancelled})
    return RosbridgeServer(bridge, planner, body, limits=QUICK, **choices), body, planner


def test_a_goal_is_cancelled(robot: StandIn, bridge: Bridge) -> None:
    server, body, planner = hanging(bridge)
    goal(robot, "first", "wave")
    assert body.begun.wait(WAIT)
    cancel(robot, "another")
    cancel(robot, "first")
    status, told = result(robot, "first")
    assert (status, told["success"]) == (PREEMPTED, False)
    assert not body.running
    assert planner.named("report") == [(failed("cancelled"),)]
    server.close()


def test_a_new_goal_takes_the_place_of_the_old(robot: StandIn, bridge: Bridge) -> None:
    server, body, planner = hanging(bridge)
    body.deeds["wave"] = lambda one: until_cancelled(one) if len(one.executed) == 1 else Outcome(True)
    planner.script = ["wave", "wave", "done"]
    goal(robot, "first", "wave")
    assert body.begun.wait(WAIT)
    goal(robot, "second", "wave again")
    assert result(robot, "first")[0] == PREEMPTED
    assert result(robot, "second")[0] == SUCCEEDED
    server.close()


def test_a_goal_that_fails_is_aborted(robot: StandIn, bridge: Bridge) -> None:
    server = RosbridgeServer(bridge, ScriptPlanner([ValueError("no idea")]), ScriptRobot(), limits=QUICK)
    goal(robot, "first", "wave")
    status, told = result(robot, "first")
    assert status == ABORTED
    assert "no idea" in told["report"]
    server.close()


def test_a_goal_without_words_is_aborted(robot: StandIn, bridge: Bridge) -> None:
    """A planner may be asked for anything; one that refuses ends the task."""

    class Refuses(ScriptPlanner):
        def plan(self, instruction, skills):
            raise ValueError("an instruction is needed")

    server = RosbridgeServer(bridge, Refuses(), ScriptRobot(), limits=QUICK)
    goal(robot, "first", " ")
    assert result(robot, "first")[0] == ABORTED
    server.close()


@pytest.mark.parametrize("distribution", ["ros1", "ros2"])
def test_a_task_and_a_stop_need_no_messages_of_ours(robot: StandIn, bridge: Bridge, distribution: str) -> None:
    server, body, _ = hanging(bridge, distribution=distribution)
    robot.subscribed("/keep_agent/task", "/keep_agent/stop")
    robot.publish("/keep_agent/task", {"data": "wave"})
    assert body.begun.wait(WAIT)
    robot.publish("/keep_agent/task", {"data": "nod"})
    robot.until(lambda: any(status.get("refused") == "nod" for status in statuses(robot)))
    robot.publish("/keep_agent/stop", {"data": "mind the cat"})
    last = settled(robot)
    assert last["stop"] == "stopped"
    assert "mind the cat" in last["report"]
    server.close()


def test_plans_reports_and_facts(robot: StandIn, bridge: Bridge) -> None:
    planner = ScriptPlanner(["wave", "nod"])
    server = RosbridgeServer(bridge, planner, ScriptRobot(), limits=QUICK)
    robot.subscribed("/keep_agent/facts")
    robot.publish("/keep_agent/facts", {"data": json.dumps([{"id": "mug_1"}])})
    request = {"instruction": "greet", "skills": ["wave", "nod", "done"]}
    assert robot.call("/keep_agent/plan", request) == {"skill": "wave", "ok": True, "report": ""}
    assert robot.call("/keep_agent/report", {"ok": False, "message": "no arm"}) == {"ok": True, "report": ""}
    assert robot.call("/keep_agent/plan", request)["skill"] == "nod"
    assert robot.call("/keep_agent/plan", request)["skill"] == "done"
    assert not robot.call("/keep_agent/plan", {})["ok"]
    assert planner.named("report") == [(failed("no arm"),), (Outcome(True),), (Outcome(True),)]
    assert len(planner.named("observe")) == 1
    server.close()


@pytest.mark.parametrize("request_", [{"ok": "true"}, {"ok": None}, {"success": True}, {}, {"ok": -1, "message": "x"}])
def test_a_report_that_does_not_say_whether_it_worked_counts_as_a_failure(
    robot: StandIn, bridge: Bridge, request_: dict
) -> None:
    planner = ScriptPlanner(["wave"])
    server = RosbridgeServer(bridge, planner, ScriptRobot(), limits=QUICK)
    robot.call("/keep_agent/plan", {"instruction": "greet", "skills": ["wave"]})
    answer = robot.call("/keep_agent/report", request_)
    assert not answer["ok"] and "ok" in answer["report"]
    assert planner.named("report") == [(failed(answer["report"]),)]
    server.close()


def test_no_plan_while_a_task_is_on(robot: StandIn, bridge: Bridge) -> None:
    server, body, _ = hanging(bridge)
    goal(robot, "first", "wave")
    assert body.begun.wait(WAIT)
    answer = robot.call("/keep_agent/plan", {"instruction": "greet", "skills": ["wave"]})
    assert (answer["ok"], answer["report"][:12]) == (False, "a task is on")
    server.close()
    assert result(robot, "first")[0] == ABORTED
    assert not body.running


def test_the_services_are_there_again_after_a_break(robot: StandIn, bridge: Bridge) -> None:
    server = RosbridgeServer(bridge, ScriptPlanner(["wave"]), ScriptRobot(), limits=QUICK)
    robot.until(lambda: robot.offered.count("/keep_agent/plan") == 1)
    robot.cut()
    robot.until(lambda: robot.offered.count("/keep_agent/plan") == 2)
    assert robot.call("/keep_agent/plan", {"instruction": "greet", "skills": ["wave"]})["skill"] == "wave"
    server.close()


def test_nothing_begins_after_a_stop_at_the_same_moment(robot: StandIn, bridge: Bridge) -> None:
    """A single plan keeps the planner busy, a task waits for it, and somebody presses stop."""
    thinking, answer = Event(), Event()

    def think() -> str:
        thinking.set()
        return "wave" if answer.wait(WAIT) else ""

    body = ScriptRobot()
    server = RosbridgeServer(bridge, ScriptPlanner([think, "wave"]), body, limits=QUICK)
    robot.subscribed("/keep_agent/task", "/keep_agent/stop")
    robot.request("/keep_agent/plan", {"instruction": "a", "skills": ["wave"]})
    assert thinking.wait(WAIT)
    robot.publish("/keep_agent/task", {"data": "greet"})
    robot.until(lambda: server.service.session._stop_requested is not None)
    robot.publish("/keep_agent/task", {"data": "another"})
    robot.until(lambda: any(status.get("refused") == "another" for status in statuses(robot)))
    robot.publish("/keep_agent/stop", {"data": "mind the cat"})
    assert settled(robot)["report"].endswith("stopped (mind the cat)")
    answer.set()
    server.close()
    assert body.executed == []


def test_a_goal_that_is_sent_again_after_the_end_is_stopped_at_once(robot: StandIn, bridge: Bridge) -> None:
    """As a behaviour tree does. The robot must not move when its planner is being shut down."""
    server, body, _ = hanging(bridge)
    goal(robot, "first", "wave")
    assert body.begun.wait(WAIT)
    robot.listeners[f"{ACTION}/result"] = lambda message: goal(robot, "second", "wave")
    server.close()
    assert result(robot, "first")[0] == ABORTED
    assert body.executed == ["wave"]


def test_a_heartbeat_never_misses_a_goal_that_has_begun(robot: StandIn, bridge: Bridge) -> None:
    """A client takes one that is missing for lost, and does not listen to its result any more."""
    server = RosbridgeServer(bridge, ScriptPlanner(), ScriptRobot(), limits=QUICK)
    for number in range(20):
        goal(robot, str(number), "greet")
        result(robot, str(number))
    beats = [[one["goal_id"]["id"] for one in beat["status_list"]] for beat in robot.heard[f"{ACTION}/status"]]
    for number in map(str, range(19)):
        first = next(index for index, names in enumerate(beats) if number in names)
        assert number in beats[first + 1]
    server.close()


def test_a_result_that_fell_due_while_the_connection_was_gone_is_told_when_it_is_back(
    robot: StandIn, bridge: Bridge
) -> None:
    server, body, _ = hanging(bridge)
    goal(robot, "first", "wave")
    assert body.begun.wait(WAIT)
    lost = Event()
    bridge.on_lost(lost.set)
    robot.cut()
    assert lost.wait(WAIT)
    server.service.stop("mind the cat")
    assert result(robot, "first")[0] == ABORTED
    server.close()


def test_who_waits_at_the_end_or_comes_later_is_told(robot: StandIn, bridge: Bridge) -> None:
    begun, go, done = Event(), Event(), {"success": True, "report": ""}

    def work(*given: object) -> End:
        begun.set()
        assert go.wait(WAIT)
        return End(SUCCEEDED, "", done)

    server = BridgeActionServer(bridge, ACTION, "keep_agent_msgs/TaskAction", work, lambda: None)
    goal(robot, "runs", "wave")
    assert begun.wait(WAIT)
    goal(robot, "waits", "wave")
    robot.until(lambda: server._next is not None)
    closing = Thread(target=server.close, args=(WAIT,))
    closing.start()
    robot.until(lambda: server._closed)
    go.set()
    closing.join()
    assert result(robot, "runs") == (SUCCEEDED, done)
    goal(robot, "comes later", "wave")
    for name in ("waits", "comes later"):
        status, told = result(robot, name)
        assert status == REJECTED and "send the goal again" in told["report"]


@pytest.mark.parametrize("message", [{"goal_id": {"id": "x"}}, {"goal": {"task": "wave"}}, {"goal": 3, "goal_id": 3}])
def test_a_goal_that_is_none_is_ignored(robot: StandIn, bridge: Bridge, message: dict) -> None:
    server = RosbridgeServer(bridge, ScriptPlanner(), ScriptRobot(), limits=QUICK)
    robot.subscribed(f"{ACTION}/goal")
    robot.publish(f"{ACTION}/goal", message)
    goal(robot, "good", "greet")
    assert result(robot, "good")[0] == SUCCEEDED
    server.close()


COMMAND = [sys.executable, "-m", "keep_agent.robots.rosbridge_server", "--host", "127.0.0.1"]
SCRIPTED = ["--planner", "keep_agent.robots.scripted:ScriptedPlanning"]
HOUSE = ["--executor", "tests.keep_agent.robots.houses:clean_mug"]


def test_the_command_serves_and_ends(robot: StandIn, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = [*COMMAND, "--port", str(robot.port), *SCRIPTED, *HOUSE, "--timeout", str(WAIT)]
    with process(options, os.environ | {"PYTHONPATH": str(ROOT)}, log) as started:
        wait_for_line(log, "listening on", started)
        goal(robot, "first", CLEAN_MUG)
        assert result(robot, "first")[0] == SUCCEEDED
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait(WAIT) == 130


def test_the_command_says_that_nobody_answers() -> None:
    # the time-out for a connection is the library's, so a port that refuses takes as long as one that is silent
    options = [*COMMAND, "--port", str(free_port()), *SCRIPTED, "--timeout", "0.3"]
    done = subprocess.run(options, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "no rosbridge answers" in done.stderr
    assert len(done.stderr.splitlines()) == 1
