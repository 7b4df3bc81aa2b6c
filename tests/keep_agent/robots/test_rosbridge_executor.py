"""A robot that a test plays behind a rosbridge's protocol, and our session that moves it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from threading import Event, Timer

import pytest

from envs.outcome import Outcome, failed
from keep_agent.errors import ConfigError
from keep_agent.robots import ConnectionLost, Feedback, RobotSession, RobotTimeout
from keep_agent.robots.rosbridge import skill_clients as rosbridge_skills
from keep_agent.robots.rosbridge.connection import RETRY, Bridge
from keep_agent.robots.rosbridge.executor import RosbridgeExecutor
from keep_agent.robots.rosbridge.skill_clients import Fields
from tests.keep_agent.robots.bridge import ABORTED, CANCELED, SUCCEEDED, WAIT, StandIn
from tests.keep_agent.robots.robots import QUICK, ScriptPlanner, in_background, limited, limits
from tests.keep_agent.robots.ros import free_port

WAVE = ("wave",)


def wave(goal: dict, feedback, cancelled: Event) -> tuple[int, dict]:
    feedback({"current_status": f"{goal['task']}: arm up"})
    return SUCCEEDED, {"success": True, "report": "waved"}


def wait_and_say_so(goal: dict, feedback, cancelled: Event) -> tuple[int, dict]:
    feedback({"current_status": "arm up"})
    assert cancelled.wait(WAIT)
    return CANCELED, {"success": False, "report": ""}


def test_a_ros2_action_carries_a_skill_out(robot: StandIn, bridge: Bridge) -> None:
    robot.actions["/execute_skill"] = wave
    planner, events = ScriptPlanner(["wave"]), []
    executor = RosbridgeExecutor(bridge, WAVE)
    robot.subscribed("/facts")
    robot.publish("/facts", {"data": json.dumps([{"id": "mug_1", "place": "table_1"}])})
    wait_for_facts(executor)
    report = RobotSession(planner, executor, limits=QUICK, watch=events.append).run("greet")
    assert report.success
    assert report.steps[0].outcome == Outcome(True, "waved")
    assert [event.text for event in events if isinstance(event, Feedback)] == ["wave: arm up"]
    [(facts,)] = planner.named("observe")
    assert [(fact.id, fact.type, fact.category, fact.place) for fact in facts] == [
        ("mug_1", "mug", "object", "table_1")
    ]


def wait_for_facts(executor: RosbridgeExecutor) -> None:
    with executor._news:
        assert executor._news.wait_for(lambda: executor._facts, WAIT)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ((ABORTED, {"success": False, "report": "no arm"}), failed("no arm")),
        ((ABORTED, {}), failed("the robot says aborted")),
        ((SUCCEEDED, {"success": False, "report": "fell"}), failed("fell")),
        ((SUCCEEDED, {"success": True}), Outcome(True)),
        (ValueError("no such action type"), failed("no such action type")),
        (("SUCCEEDED", {"success": True}), failed("the robot says 'SUCCEEDED'")),
        ((7, {"success": True}), failed("the robot says 7")),
        ((None, {"status": SUCCEEDED, "success": True}), Outcome(True)),
        ((None, None), failed("the robot says None")),
        ((ABORTED, "no arm"), failed("no arm")),
    ],
)
def test_how_a_ros2_action_ends(robot: StandIn, bridge: Bridge, end: object, outcome: Outcome) -> None:
    def act(goal: dict, feedback, cancelled: Event) -> tuple[int, dict]:
        if isinstance(end, Exception):
            raise end
        return end

    robot.actions["/execute_skill"] = act
    assert RosbridgeExecutor(bridge, WAVE).execute("wave", lambda text: None) == outcome


def test_a_ros2_action_over_a_connection_that_came_back(robot: StandIn, bridge: Bridge) -> None:
    """Soon after it can: the library would wait longer and longer between its tries, up to an hour."""
    assert bridge.ros.factory.maxDelay == RETRY < 10
    robot.actions["/execute_skill"] = wave
    executor, lost, back = RosbridgeExecutor(bridge, WAVE), Event(), Event()
    bridge.on_lost(lost.set)
    robot.subscribed("/facts")  # then the bridge knows of the connection
    robot.cut()
    assert lost.wait(WAIT)
    bridge.on_ready(lambda: back.set() if bridge.connected else None)
    assert back.wait(WAIT)
    assert executor.execute("wave", lambda text: None) == Outcome(True, "waved")


def test_stop_cancels_a_ros2_action(robot: StandIn, bridge: Bridge) -> None:
    robot.actions["/execute_skill"] = wait_and_say_so
    begun = Event()
    session = RobotSession(
        ScriptPlanner(["wave"]),
        RosbridgeExecutor(bridge, WAVE),
        limits=QUICK,
        watch=lambda event: begun.set() if isinstance(event, Feedback) else None,
    )
    running = in_background(session)
    assert begun.wait(WAIT)
    session.stop("enough")
    report = running.result(WAIT)
    assert (report.stop, report.hanging) == ("stopped", "")
    assert report.steps[0].outcome == failed("the robot says cancelled")


def actionlib_robot(robot: StandIn, status: int, result: dict, wait_for_cancel: bool = False) -> None:
    """A ROS 1 action server, as its topics look from a bridge."""
    cancelled = Event()

    def on_goal(message: dict) -> None:
        told = {"goal_id": message["goal_id"], "status": 1, "text": ""}
        other = {"goal_id": {"id": "another", "stamp": {"secs": 0, "nsecs": 0}}, "status": 4, "text": "not ours"}
        robot.publish("/execute_skill/result", {"status": other, "result": {"success": False}})
        robot.publish("/execute_skill/feedback", {"status": told, "feedback": {"current_status": "arm up"}})
        if wait_for_cancel:
            assert cancelled.wait(WAIT)
        robot.publish("/execute_skill/result", {"status": told | {"status": status}, **result})

    robot.listeners["/execute_skill/goal"] = on_goal
    robot.listeners["/execute_skill/cancel"] = lambda message: cancelled.set() if message["id"] else None


@pytest.mark.parametrize(
    ("status", "result", "outcome"),
    [
        (3, {"result": {"success": True, "report": "waved"}}, Outcome(True, "waved")),
        (4, {"result": {"success": False, "report": "no arm"}}, failed("no arm")),
        (3, {"result": {"success": False, "report": ""}}, failed("the robot says no")),
        (2, {}, failed("the robot says preempted")),
    ],
)
def test_how_a_ros1_action_ends(robot: StandIn, bridge: Bridge, status: int, result: dict, outcome: Outcome) -> None:
    actionlib_robot(robot, status, result)
    executor = RosbridgeExecutor(bridge, WAVE, kind="ros1_action")
    robot.subscribed("/execute_skill/result", "/execute_skill/feedback")
    said: list[str] = []
    assert executor.execute("wave", said.append) == outcome
    assert said == ["arm up"]
    goal = robot.heard["/execute_skill/goal"][0]
    assert goal["goal"] == {"task": "wave"}
    assert goal["goal_id"]["stamp"]["secs"] > 1_000_000_000


def test_stop_cancels_a_ros1_action(robot: StandIn, bridge: Bridge) -> None:
    actionlib_robot(robot, 2, {"result": {"success": False, "report": "let go"}}, wait_for_cancel=True)
    executor = RosbridgeExecutor(bridge, WAVE, kind="ros1_action")
    robot.subscribed("/execute_skill/result", "/execute_skill/feedback")
    session = RobotSession(ScriptPlanner(["wave"]), executor, limits=QUICK)
    running = in_background(session)
    robot.until(lambda: robot.heard["/execute_skill/goal"])
    session.stop("enough")
    report = running.result(WAIT)
    assert report.stop == "stopped"
    assert report.steps[0].outcome == failed("let go")


def test_a_service_carries_a_skill_out(robot: StandIn, bridge: Bridge) -> None:
    robot.services["/do"] = lambda args: {"fine": args["deed"] == "wave", "why": "said so"}
    fields = Fields(skill="deed", ok="fine", message="why")
    executor = RosbridgeExecutor(bridge, ["wave", "nod"], kind="service", name="/do", type="a/Do", fields=fields)
    assert executor.execute("wave", lambda text: None) == Outcome(True, "said so")
    assert executor.execute("nod", lambda text: None) == failed("said so")


def test_a_service_without_a_flag_has_worked_when_it_answers(robot: StandIn, bridge: Bridge) -> None:
    robot.services["/do"] = lambda args: {}
    choices = {"kind": "service", "name": "/do", "type": "std_srvs/Empty"}
    assert RosbridgeExecutor(bridge, WAVE, fields=Fields(ok=None), **choices).execute("wave", print) == Outcome(True)
    assert "no field 'success'" in RosbridgeExecutor(bridge, WAVE, **choices).execute("wave", print).message


def test_a_service_that_does_not_cancel_is_logged(
    robot: StandIn, bridge: Bridge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rosbridge_skills, "HALT", WAIT)
    robot.services["/halt"] = lambda args: {"success": False, "message": "the brake is broken"}
    executor = RosbridgeExecutor(bridge, WAVE, kind="service", name="/do", type="a/Do", cancel="/halt")
    executor._client.cancel()
    assert "service /halt does not cancel: the brake is broken" in caplog.text


def test_a_service_that_is_not_there_is_a_failure(robot: StandIn, bridge: Bridge) -> None:
    executor = RosbridgeExecutor(bridge, WAVE, kind="service", name="/do", type="a/Do")
    assert "does not exist" in executor.execute("wave", lambda text: None).message


def test_a_service_is_cancelled_by_another(robot: StandIn, bridge: Bridge) -> None:
    begun, halted = Event(), Event()

    def do(args: dict) -> dict:
        begun.set()
        return {"success": not halted.wait(WAIT), "report": "halted"}

    robot.services["/do"] = do
    robot.services["/halt"] = lambda args: halted.set() or {"success": True, "message": ""}
    executor = RosbridgeExecutor(bridge, WAVE, kind="service", name="/do", type="a/Do", cancel="/halt")
    session = RobotSession(ScriptPlanner(["wave"]), executor, limits=QUICK)
    running = in_background(session)
    assert begun.wait(WAIT)
    session.stop()
    assert running.result(WAIT).steps[0].outcome == failed("halted")


def test_a_service_without_that_is_said_to_hang(robot: StandIn, bridge: Bridge) -> None:
    asked, release = Event(), Event()

    def do(args: dict) -> dict:
        asked.set()
        return {"success": release.wait(WAIT)}

    robot.services["/do"] = do
    executor = RosbridgeExecutor(bridge, WAVE, kind="service", name="/do", type="a/Do")
    with limited("skill", hangs=asked):
        hasty = limits(skill=0.05, cancel=0.05)
        report = RobotSession(ScriptPlanner(["wave"]), executor, limits=hasty).run("greet")
    release.set()
    assert (report.stop, report.hanging) == ("skill_hangs", "wave")


def test_skills_come_from_a_topic(robot: StandIn, bridge: Bridge) -> None:
    executor = RosbridgeExecutor(bridge, "/skills", timeout=WAIT)
    robot.publish("/skills", {"data": "no JSON"}, latch=True)
    robot.publish("/skills", {"data": json.dumps(["nod", "bow"])}, latch=True)
    assert executor.skills() == ("nod", "bow")


def test_a_robot_that_names_no_skills_is_named(robot: StandIn, bridge: Bridge) -> None:
    executor = RosbridgeExecutor(bridge, "/skills", timeout=0.05)
    with pytest.raises(RobotTimeout, match="did not name its skills"):
        executor.skills()
    report = RobotSession(ScriptPlanner(["wave"]), executor, limits=QUICK).run("greet")
    assert report.stop == "executor_error"


def test_facts_that_are_none_are_left_out(robot: StandIn, bridge: Bridge) -> None:
    executor = RosbridgeExecutor(bridge, WAVE)
    robot.subscribed("/facts")
    for data in ("nonsense", json.dumps([{"no": "id"}]), json.dumps({"id": "cup_2", "states": ["dirty"]})):
        robot.publish("/facts", {"data": data})
    wait_for_facts(executor)
    [fact] = executor.observe()
    assert (fact.id, fact.states) == ("cup_2", ("dirty",))


def test_a_lost_connection_ends_the_task_by_name(robot: StandIn, bridge: Bridge) -> None:
    release = Event()
    robot.actions["/execute_skill"] = lambda goal, feedback, cancelled: (release.wait(WAIT), {})
    planner = ScriptPlanner(["wave"])
    session = RobotSession(planner, RosbridgeExecutor(bridge, WAVE), limits=QUICK)
    running = in_background(session)
    robot.until(lambda: robot._goals)
    robot.cut()
    report = running.result(WAIT)
    release.set()
    assert report.stop == "executor_error"
    assert re.search("SkillLost|ConnectionLost", report.message)  # the skill and the look notice it, in either order
    assert report.hanging == "wave"
    assert len(planner.named("report")) == len(planner.named("plan")) == 1


def test_what_got_lost_with_the_connection_is_cancelled_before_anything_else(robot: StandIn, bridge: Bridge) -> None:
    robot.actions["/execute_skill"] = lambda goal, feedback, cancelled: (
        SUCCEEDED,
        {"success": not cancelled.wait(WAIT)},
    )
    executor = RosbridgeExecutor(bridge, ["wave", "nod"])
    session = RobotSession(ScriptPlanner(["wave", "nod"]), executor, limits=QUICK)
    running = in_background(session)
    [first] = robot.until(lambda: [*robot._goals.values()])
    robot.cut()
    assert running.result(WAIT).hanging == "wave"
    assert first.wait(WAIT), "told as soon as the connection is back"


def test_a_result_that_never_comes_does_not_keep_the_robot_for_ever(
    robot: StandIn, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has died behind a bridge that lives."""
    arrived, over, never, told = Event(), Event(), Event(), []

    class Later(Timer):
        """Begins to count when the first task is over, which a busy machine may need longer for."""

        def run(self) -> None:
            assert over.wait(WAIT)
            super().run()

    def dead(goal: dict, feedback, cancelled: Event) -> tuple[int, dict]:
        told.append(cancelled)
        arrived.set()
        never.wait(WAIT)
        return SUCCEEDED, {}

    monkeypatch.setattr(rosbridge_skills, "Timer", Later)
    robot.actions["/execute_skill"] = dead
    executor = RosbridgeExecutor(bridge, ["wave", "nod"], silence=0.2)
    session = RobotSession(ScriptPlanner(["wave", "nod"]), executor, limits=limits(skill=0.05, cancel=0.05))
    with limited("skill", hangs=arrived):
        report = session.run("greet")
    assert (report.stop, report.hanging) == ("skill_hangs", "wave")
    robot.actions["/execute_skill"], session.limits = wave, QUICK
    over.set()
    again = session.run("again")
    assert again.success, again
    never.set()
    assert told[0].is_set()


def test_nothing_is_sent_into_a_lost_connection(robot: StandIn, bridge: Bridge) -> None:
    """The library would send it later, when nobody expects the robot to move."""
    executor, lost = RosbridgeExecutor(bridge, WAVE), Event()
    bridge.on_lost(lost.set)
    robot.subscribed("/facts")
    robot.open.clear()
    robot.cut()
    assert lost.wait(WAIT)
    with pytest.raises(ConnectionLost, match="is gone"):
        executor.execute("wave", lambda text: None)
    with pytest.raises(ConnectionLost, match="is gone"):
        executor.observe()
    robot.open.set()
    robot.actions["/execute_skill"] = wave
    robot.subscribed("/facts")  # connected again, by itself
    assert not robot._goals
    assert executor.execute("wave", lambda text: None).ok


def test_nobody_answers() -> None:
    port = free_port()
    with pytest.raises(ConnectionLost, match=f"no rosbridge answers at 127.0.0.1:{port} within 0.2 s"):
        Bridge("127.0.0.1", port, timeout=0.2)


@pytest.mark.parametrize(("choices", "what"), [({"kind": "magic"}, "magic"), ({"kind": "service"}, "type")])
def test_bad_choices_are_named(robot: StandIn, bridge: Bridge, choices: dict, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        RosbridgeExecutor(bridge, WAVE, **choices)


@pytest.mark.parametrize("closed", ["bridge.close()", ""])
def test_the_process_ends_when_its_main_does(robot: StandIn, closed: str) -> None:
    """Threads of the library must not keep it alive, closed or not, nor after a break."""
    code = (
        "import sys; from keep_agent.robots.rosbridge.connection import Bridge\n"
        "from keep_agent.robots.rosbridge.executor import RosbridgeExecutor\n"
        f"bridge = Bridge('127.0.0.1', {robot.port}, {WAIT})\n"
        "executor = RosbridgeExecutor(bridge, ['wave'])\n"
        "assert executor.execute('wave', print).ok\n"
        f"{closed}"
    )
    robot.actions["/execute_skill"] = wave
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "wave: arm up"
