"""ROS 2 node with a simulated rclpy, and with rclpy where it is installed."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from envs.outcome import Outcome
from keep_agent.robots import NotInstalled, ros2, symbolic
from keep_agent.robots.scripted import ScriptedPlanning
from tests.keep_agent.robots import rclpy_standin
from tests.keep_agent.robots.robots import QUICK, WAIT, ScriptPlanner, ScriptRobot, scripted, until_cancelled
from tests.keep_agent.robots.ros import SCRIPTED, refusal
from tests.waiting import until

Start = Callable[..., tuple[ros2.Ros2Node, ScriptRobot]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make nodes whose robot waves until it is cancelled, and nods at once."""
    rclpy_standin.install(monkeypatch)
    monkeypatch.setattr(ros2, "RESULT_TIMEOUT", WAIT)
    monkeypatch.setattr(ros2, "time", SimpleNamespace(sleep=rclpy_standin.sleep))

    def start(*script: str) -> tuple[ros2.Ros2Node, ScriptRobot]:
        node, _, robot = scripted(script, wave=until_cancelled, kind=ros2.Ros2Node)
        return node, robot

    return start


def test_cancelled_goal_ends_as_cancelled(start: Start) -> None:
    node, robot = start("wave")

    def wave(robot: ScriptRobot) -> Outcome:
        outcome = until_cancelled(robot)
        until(lambda: goal.is_cancel_requested)
        return outcome

    robot.deeds["wave"] = wave
    goal = node.server.send("greet")
    assert robot.started.wait(WAIT)
    node.server.cancel(goal)
    result = goal.result.result(WAIT)
    assert (goal.status, result.success) == ("canceled", False) and "the goal was cancelled" in result.report


def test_goal_cancelled_before_its_run_moves_nothing(start: Start) -> None:
    """rclpy sets a goal's cancel flag only after the callback has returned, so the goal's run may begin before."""
    node, robot = start("nod")
    with node._run_lock:
        goal = node.server.send("greet")
        node._cancel(goal)
    assert not goal.result.result(WAIT).success and not robot.executed and not goal.is_cancel_requested


def test_new_goal_replaces_the_old_one(start: Start) -> None:
    node, robot = start("wave", "nod")
    first = node.server.send("greet")
    assert robot.started.wait(WAIT)
    second = node.server.send("nod to her")
    assert ros2.REPLACED in first.result.result(WAIT).report and first.status == "aborted"
    assert second.result.result(WAIT).success and second.status == "succeeded"


def test_cancellation_of_a_replaced_goal_does_not_affect_the_new_one(start: Start) -> None:
    node, _ = start("nod")
    with node._run_lock:  # an earlier goal has not ended
        first, second = node.server.send("greet"), node.server.send("nod to her")
        node.server.cancel(first)
    assert not first.result.result(WAIT).success and first.status == "canceled"
    assert second.result.result(WAIT).success


@pytest.mark.usefixtures("start")
def test_interrupt_sends_the_result_before_the_command_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, goals = ScriptRobot(deeds={"wave": until_cancelled}), []

    def interrupt(spinning: Any, timeout: float | None = None) -> None:
        goals.append(rclpy_standin.Node.server.send("greet"))
        assert robot.started.wait(WAIT)
        rclpy_standin.Node.server.sends.clear()
        raise KeyboardInterrupt

    parts = SimpleNamespace(planner=ScriptPlanner(["wave"]), executor=robot, options={"limits": QUICK})
    monkeypatch.setattr(ros2, "make_setup", lambda arguments: parts)
    monkeypatch.setattr(ros2, "Thread", type("Spinning", (ros2.Thread,), {"join": interrupt}))
    with pytest.raises(KeyboardInterrupt):
        ros2._serve(Namespace(name="keep_agent"))
    assert goals[0].status == "aborted" and "shut down" in goals[0].result.result(WAIT).report
    ends = ["result aborted", "server destroyed", "node destroyed", "executor shut down", "context shut down"]
    assert rclpy_standin.Node.latest.log[-5:] == ends
    assert rclpy_standin.Node.server.send("greet") is None, "no goal is accepted any more"


@pytest.mark.skipif(find_spec("rclpy") is None, reason="needs ROS 2 with keep_agent_msgs")
def test_node_of_rclpy_opens_and_closes() -> None:
    import rclpy

    rclpy.init()
    robot = symbolic()
    ros2.Ros2Node(ScriptedPlanning(robot), robot).close()
    rclpy.shutdown()


@pytest.mark.skipif(find_spec("rclpy") is not None, reason="ROS 2 is installed")
def test_command_without_ros_2_names_the_remedy() -> None:
    text = refusal([sys.executable, "-m", "keep_agent.robots.ros2", *SCRIPTED])
    assert "rclpy cannot be imported" in text and "rosbridge" in text


def test_missing_library_is_an_import_error() -> None:
    with pytest.raises(ImportError) as caught:
        ros2.ros2("rclpy_that_is_not_there")
    assert isinstance(caught.value, NotInstalled)
