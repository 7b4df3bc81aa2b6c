"""Sessions and skills of a robot behind a simulated rosbridge."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Timer
from typing import Any

import pytest

from envs.outcome import Outcome, failed
from keep_agent.errors import ConfigError
from keep_agent.robots import ConnectionLost, Feedback, RobotSession, RobotTimeout, TaskReport
from keep_agent.robots.rosbridge import skill_clients
from keep_agent.robots.rosbridge.connection import RETRY, Bridge
from keep_agent.robots.rosbridge.executor import RosbridgeExecutor
from keep_agent.robots.rosbridge.skill_clients import Fields
from tests.keep_agent.robots.bridge import ABORTED, CANCELED, SUCCEEDED, WAIT, StandIn
from tests.keep_agent.robots.robots import QUICK, Gate, ScriptPlanner, in_background, limited, limits

WAVE = ("wave",)
SERVICE = {"kind": "service", "name": "/do", "type": "a/Do"}
SHORT = {"skill": 0.05, "cancel": 0.05}


def wave(goal: dict, feedback: Callable[[dict], None], cancelled: Event) -> tuple[int, dict]:
    feedback({"current_status": f"{goal['task']}: arm up"})
    return SUCCEEDED, {"success": True, "report": "waved"}


def perform(bridge: Bridge, *, feedback: Callable[[str], object] = str, skill: str = "wave", **choices: Any) -> Outcome:
    return RosbridgeExecutor(bridge, (skill,), **choices).execute(skill, feedback)


def session_of(executor: RosbridgeExecutor, **options: Any) -> RobotSession:
    return RobotSession(ScriptPlanner(WAVE), executor, **{"limits": QUICK} | options)


def stopped(session: RobotSession, wait: Callable[[], object]) -> TaskReport:
    """Run a task, stop it after ``wait`` has returned a true value, and return its report."""
    running: Future[TaskReport] = in_background(session)
    assert wait()
    session.stop("enough")
    return running.result(WAIT)


def wait_for_facts(executor: RosbridgeExecutor) -> None:
    with executor._changed:
        assert executor._changed.wait_for(lambda: executor._facts, WAIT)


def test_ros2_action_carries_out_a_skill(robot: StandIn, bridge: Bridge) -> None:
    robot.actions["/execute_skill"] = wave
    events, executor = [], RosbridgeExecutor(bridge, WAVE)
    robot.subscribed("/facts")
    robot.publish("/facts", {"data": json.dumps([{"id": "mug_1", "place": "table_1"}])})
    wait_for_facts(executor)
    session = session_of(executor, watch=events.append)
    report = session.run("greet")
    assert report.success and report.steps[0].outcome == Outcome(True, "waved")
    assert [event.text for event in events if isinstance(event, Feedback)] == ["wave: arm up"]
    [[mug]] = session.planner.facts
    assert (mug.id, mug.type, mug.category, mug.place) == ("mug_1", "mug", "object", "table_1")


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ((ABORTED, {"success": False, "report": "no arm"}), failed("no arm")),
        ((ABORTED, {}), failed("the robot says aborted")),
        ((CANCELED, {"success": False, "report": ""}), failed("the robot says cancelled")),
        ((SUCCEEDED, {"success": False, "report": "fell"}), failed("fell")),
        ((SUCCEEDED, {"success": True}), Outcome(True)),
        (ValueError("no such action type"), failed("no such action type")),
        (("SUCCEEDED", {"success": True}), failed("the robot says 'SUCCEEDED'")),
        ((7, {"success": True}), failed("the robot says 7")),
        ((None, {"status": SUCCEEDED, "success": True}), Outcome(True)),
        ((None, None), failed("the robot says None")),
        ((ABORTED, "no arm"), failed("no arm")),
        ((ABORTED, {"success": "?", "report": "no arm"}), failed("no arm")),
    ],
)
def test_result_of_a_ros2_action_is_an_outcome(robot: StandIn, bridge: Bridge, end: object, outcome: Outcome) -> None:
    def act(*_: object) -> tuple[int, dict]:
        if isinstance(end, Exception):
            raise end
        return end

    robot.actions["/execute_skill"] = act
    assert perform(bridge) == outcome


def test_stop_cancels_a_ros2_action(robot: StandIn, bridge: Bridge) -> None:
    running = Event()

    def act(goal: dict, feedback: object, cancelled: Event) -> tuple[int, dict]:
        running.set()
        assert cancelled.wait(WAIT)
        return CANCELED, {"success": False, "report": ""}

    robot.actions["/execute_skill"] = act
    report = stopped(session_of(RosbridgeExecutor(bridge, WAVE)), lambda: running.wait(WAIT))
    assert (report.stop, report.hanging) == ("stopped", "")
    assert report.steps[0].outcome == failed("the robot says cancelled")


def actionlib_robot(
    robot: StandIn, bridge: Bridge, status: Any, result: dict, wait_for_cancel: bool = False
) -> RosbridgeExecutor:
    """Simulate the topics of a ROS 1 action server; return an executor that uses it."""
    cancelled = Event()

    def on_goal(message: dict) -> None:
        active = {"goal_id": message["goal_id"], "status": 1, "text": ""}
        foreign = {"goal_id": {"id": "another", "stamp": {"secs": 0, "nsecs": 0}}, "status": 4, "text": "another goal"}
        robot.publish("/execute_skill/result", {"status": foreign, "result": {"success": False}})
        robot.publish("/execute_skill/feedback", {"status": active, "feedback": {"current_status": "arm up"}})
        if wait_for_cancel:
            assert cancelled.wait(WAIT)
        robot.publish("/execute_skill/result", {"status": active | {"status": status}, **result})

    robot.listeners["/execute_skill/goal"] = on_goal
    robot.listeners["/execute_skill/cancel"] = lambda message: cancelled.set() if message["id"] else None
    executor = RosbridgeExecutor(bridge, WAVE, kind="ros1_action")
    robot.subscribed("/execute_skill/result", "/execute_skill/feedback")
    return executor


@pytest.mark.parametrize(
    ("status", "result", "outcome"),
    [
        (3, {"result": {"success": True, "report": "waved"}}, Outcome(True, "waved")),
        (4, {"result": {"success": False, "report": "no arm"}}, failed("no arm")),
        (3, {"result": {"success": False, "report": ""}}, failed(f"the robot says {skill_clients.NO_SUCCESS}")),
        (2, {}, failed("the robot says preempted")),
        *((odd, {"result": {"success": True}}, failed(f"the robot says {odd!r}")) for odd in ("3", 3.0, True, None)),
        *((odd, {"result": {"success": True}}, failed(f"the robot says {odd!r}")) for odd in ([3], {})),
    ],
)
def test_ros1_result_is_an_outcome(robot: StandIn, bridge: Bridge, status: Any, result: dict, outcome: Outcome) -> None:
    feedback: list[str] = []
    assert actionlib_robot(robot, bridge, status, result).execute("wave", feedback.append) == outcome
    assert feedback == ["arm up"]
    goal = robot.messages["/execute_skill/goal"][0]
    assert goal["goal"] == {"task": "wave"} and goal["goal_id"]["stamp"]["secs"] > 1_000_000_000


def test_stop_cancels_a_ros1_action(robot: StandIn, bridge: Bridge) -> None:
    result = {"result": {"success": False, "report": "let go"}}
    executor = actionlib_robot(robot, bridge, 2, result, wait_for_cancel=True)
    report = stopped(session_of(executor), lambda: robot.until(lambda: robot.messages["/execute_skill/goal"]))
    assert report.stop == "stopped" and report.steps[0].outcome == failed("let go")


@pytest.mark.parametrize("skill", ["wave", "nod"])
def test_service_carries_out_a_skill(robot: StandIn, bridge: Bridge, skill: str) -> None:
    robot.services["/do"] = lambda args: {"fine": args["deed"] == "wave", "why": "a reason"}
    fields = Fields(skill="deed", ok="fine", message="why")
    assert perform(bridge, skill=skill, fields=fields, **SERVICE) == Outcome(skill == "wave", "a reason")


def test_failed_cancellation_by_a_service_is_logged(
    robot: StandIn, bridge: Bridge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_clients, "CANCEL_TIMEOUT", WAIT)
    robot.services["/halt"] = lambda args: {"success": False, "message": "the brake is broken"}
    RosbridgeExecutor(bridge, WAVE, cancel="/halt", **SERVICE)._client.cancel()
    assert "service /halt did not cancel the skill: the brake is broken" in caplog.text


def test_missing_service_is_a_failure(robot: StandIn, bridge: Bridge) -> None:
    assert "does not exist" in perform(bridge, **SERVICE).message


def test_another_service_cancels_a_service(robot: StandIn, bridge: Bridge) -> None:
    do = Gate({"success": False, "report": "halted"})
    robot.services["/do"] = do
    robot.services["/halt"] = lambda args: do.open.set() or {"success": True, "message": ""}
    executor = RosbridgeExecutor(bridge, WAVE, cancel="/halt", **SERVICE)
    report = stopped(session_of(executor), lambda: do.entered.wait(WAIT))
    assert report.steps[0].outcome == failed("halted")


def test_service_that_cannot_be_cancelled_hangs(robot: StandIn, bridge: Bridge) -> None:
    robot.services["/do"] = do = Gate({"success": True})
    with limited("skill", hangs=do.entered):
        report = session_of(RosbridgeExecutor(bridge, WAVE, **SERVICE), limits=limits(**SHORT)).run("greet")
    do.open.set()
    assert (report.stop, report.hanging) == ("skill_hangs", "wave")


def test_robot_without_skills_is_an_error(robot: StandIn, bridge: Bridge) -> None:
    executor = RosbridgeExecutor(bridge, "/skills", timeout=0.05)
    with pytest.raises(RobotTimeout, match="did not name its skills"):
        executor.skills()
    assert session_of(executor).run("greet").stop == "executor_error"


def test_lost_connection_ends_the_task_and_later_cancels_the_skill(robot: StandIn, bridge: Bridge) -> None:
    def act(goal: dict, feedback: object, cancelled: Event) -> tuple[int, dict]:
        return SUCCEEDED, {"success": not cancelled.wait(WAIT)}

    robot.actions["/execute_skill"] = act
    session = session_of(RosbridgeExecutor(bridge, WAVE))
    running = in_background(session)
    [cancelled] = robot.until(lambda: [*robot._goals.values()])
    robot.cut()
    report = running.result(WAIT)
    assert (report.stop, report.hanging) == ("executor_error", "wave")
    assert re.search("SkillLost|ConnectionLost", report.message)  # skill and observation notice it in either order
    assert session.planner.count("plan", "report") == [1, 1]
    assert cancelled.wait(WAIT), "the cancellation is sent after the reconnection"


def test_skill_without_a_result_counts_as_lost(robot: StandIn, bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The robot's node has died, but its rosbridge is still running."""
    arrival, over, release, goals = Event(), Event(), Event(), []

    class LateTimer(Timer):
        """Timer that starts after the end of the first task."""

        def run(self) -> None:
            assert over.wait(WAIT)
            super().run()

    def hang(goal: dict, feedback: object, cancelled: Event) -> tuple[int, dict]:
        goals.append(cancelled)
        arrival.set()
        release.wait(WAIT)
        return SUCCEEDED, {}

    monkeypatch.setattr(skill_clients, "Timer", LateTimer)
    robot.actions["/execute_skill"] = hang
    session = session_of(RosbridgeExecutor(bridge, WAVE, silence=0.2), limits=limits(**SHORT))
    session.planner.script = ["wave", "wave"]
    with limited("skill", hangs=arrival):
        report = session.run("greet")
    assert (report.stop, report.hanging) == ("skill_hangs", "wave")
    robot.actions["/execute_skill"], session.limits = wave, QUICK
    over.set()
    second = session.run("again")
    assert second.success, second
    release.set()
    assert goals[0].is_set()


def test_lost_connection_drops_skills(robot: StandIn, bridge: Bridge) -> None:
    """roslibpy would send them later, and the robot would move unexpectedly."""
    executor, loss = RosbridgeExecutor(bridge, WAVE), Event()
    assert bridge.ros.factory.maxDelay == RETRY < 10  # roslibpy would increase the time between attempts up to an hour
    bridge.on_lost(loss.set)
    robot.subscribed("/facts")
    robot.open.clear()
    robot.cut()
    assert loss.wait(WAIT)
    with pytest.raises(ConnectionLost, match="is lost"):
        executor.execute("wave", str)
    with pytest.raises(ConnectionLost, match="is lost"):
        executor.observe()
    robot.open.set()
    robot.actions["/execute_skill"] = wave
    robot.subscribed("/facts")  # roslibpy has reconnected
    assert not robot._goals
    assert executor.execute("wave", str).ok


@pytest.mark.parametrize(("choices", "text"), [({"kind": "magic"}, "magic"), ({"kind": "service"}, "type")])
def test_invalid_options_are_refused(robot: StandIn, bridge: Bridge, choices: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RosbridgeExecutor(bridge, WAVE, **choices)


@pytest.mark.parametrize("close", ["bridge.close()", ""])
def test_process_ends_with_its_main_function(robot: StandIn, close: str) -> None:
    """Threads of roslibpy must not keep the process alive, with or without a call of `close`."""
    code = (
        "import sys; from keep_agent.robots.rosbridge.connection import Bridge\n"
        "from keep_agent.robots.rosbridge.executor import RosbridgeExecutor\n"
        f"bridge = Bridge('127.0.0.1', {robot.port}, {WAIT})\n"
        "executor = RosbridgeExecutor(bridge, ['wave'])\n"
        "assert executor.execute('wave', print).ok\n"
        f"{close}"
    )
    robot.actions["/execute_skill"] = wave
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "wave: arm up"
