"""The ROS 2 node over a stand-in for rclpy, and with rclpy where it is installed."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from envs.outcome import Outcome
from keep_agent.robots import NotInstalled, ros2
from tests.keep_agent.robots import rclpy_standin
from tests.keep_agent.robots.robots import QUICK, WAIT, ScriptPlanner, ScriptRobot, until_cancelled
from tests.keep_agent.robots.ros import ROOT
from tests.waiting import until


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[ros2.Ros2Node, ScriptRobot]]]:
    """A node over the stand-in whose robot waves when it is cancelled, and nods at once."""
    rclpy_standin.install(monkeypatch)
    monkeypatch.setattr(ros2, "LAST_WORDS", WAIT)
    monkeypatch.setattr(ros2, "time", SimpleNamespace(sleep=rclpy_standin.sleep))

    def make(*script: str) -> tuple[ros2.Ros2Node, ScriptRobot]:
        robot = ScriptRobot(deeds={"wave": until_cancelled})
        return ros2.Ros2Node(ScriptPlanner(script), robot, limits=QUICK), robot

    return make


def test_a_goal_is_reached_with_a_result(made: Callable[..., Any]) -> None:
    node, _ = made("nod")
    goal = node.server.send("greet")
    assert goal.result.result(WAIT).success and goal.status == "succeeded"


def test_a_goal_that_is_cancelled_ends_as_that(made: Callable[..., Any]) -> None:
    node, robot = made("wave")

    def wave(robot: ScriptRobot) -> Outcome:
        """Until the cancellation is noted, too."""
        outcome = until_cancelled(robot)
        until(lambda: goal.is_cancel_requested)
        return outcome

    robot.deeds["wave"] = wave
    goal = node.server.send("greet")
    assert robot.started.wait(WAIT)
    node.server.cancel(goal)
    result = goal.result.result(WAIT)
    assert (goal.status, result.success) == ("canceled", False) and "the goal was cancelled" in result.report


def test_a_goal_that_is_cancelled_before_its_run_has_begun_moves_nothing(made: Callable[..., Any]) -> None:
    """rclpy notes a cancellation behind the call that accepts it: the run may begin in between."""
    node, robot = made("nod")
    node._turn.acquire()
    goal = node.server.send("greet")
    node._cancel(goal)
    node._turn.release()
    assert not goal.result.result(WAIT).success and not robot.executed and not goal.is_cancel_requested


def test_a_new_goal_takes_the_place_of_the_old(made: Callable[..., Any]) -> None:
    node, robot = made("wave", "nod")
    first = node.server.send("greet")
    assert robot.started.wait(WAIT)
    second = node.server.send("nod to her")
    assert ros2.REPLACED in first.result.result(WAIT).report and first.status == "aborted"
    assert second.result.result(WAIT).success and second.status == "succeeded"


def test_cancelling_a_goal_that_was_replaced_leaves_the_new_one_alone(made: Callable[..., Any]) -> None:
    node, _ = made("nod")
    node._turn.acquire()  # as if an earlier goal had not ended yet
    first, second = node.server.send("greet"), node.server.send("nod to her")
    node.server.cancel(first)
    node._turn.release()
    assert not first.result.result(WAIT).success and first.status == "canceled"
    assert second.result.result(WAIT).success


def test_closing_tells_the_client_before_the_server_is_gone(made: Callable[..., Any]) -> None:
    node, robot = made("wave")
    goal = node.server.send("greet")
    assert robot.started.wait(WAIT)
    node.server.sends.clear()
    node.close()
    assert goal.status == "aborted" and "shut down" in goal.result.result(WAIT).report
    assert node.node.log[-3:] == ["result aborted", "server destroyed", "node destroyed"]
    assert node.server.send("greet") is None, "no goal is taken any more"


def test_an_interrupt_ends_the_command_in_the_same_order(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    robot, goals = ScriptRobot(deeds={"wave": until_cancelled}), []

    def interrupted(spinning: Any, timeout: float | None = None) -> None:
        goals.append(rclpy_standin.Node.server.send("greet"))
        assert robot.started.wait(WAIT)
        rclpy_standin.Node.server.sends.clear()
        raise KeyboardInterrupt

    parts = SimpleNamespace(planner=ScriptPlanner(["wave"]), executor=robot, options={"limits": QUICK})
    monkeypatch.setattr(ros2, "robot_of", lambda arguments: parts)
    monkeypatch.setattr(ros2, "Thread", type("Spinning", (ros2.Thread,), {"join": interrupted}))
    with pytest.raises(KeyboardInterrupt):
        ros2._serve(Namespace(name="keep_agent"))
    assert not goals[0].result.result(WAIT).success
    ends = ["result aborted", "server destroyed", "node destroyed", "executor shut down", "context shut down"]
    assert rclpy_standin.Node.latest.log[-5:] == ends


@pytest.mark.skipif(find_spec("rclpy") is None, reason="needs ROS 2 with keep_agent_msgs")
def test_a_node_comes_and_goes() -> None:
    import rclpy

    from keep_agent.robots import symbolic
    from keep_agent.robots.ros2 import Ros2Node
    from keep_agent.robots.scripted import ScriptedPlanning

    rclpy.init()
    robot = symbolic()
    node = Ros2Node(ScriptedPlanning(robot), robot)
    node.close()
    rclpy.shutdown()


@pytest.mark.skipif(find_spec("rclpy") is not None, reason="ROS 2 is there")
def test_without_ros_2_the_command_says_what_to_do() -> None:
    command = [sys.executable, "-m", "keep_agent.robots.ros2"]
    options = ["--planner", "keep_agent.robots.scripted:ScriptedPlanning"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "rclpy cannot be imported" in done.stderr
    assert "rosbridge" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_library_is_an_import_error_as_well() -> None:
    with pytest.raises(ImportError) as caught:
        ros2.ros2("rclpy_that_is_not_there")
    assert isinstance(caught.value, NotInstalled)
