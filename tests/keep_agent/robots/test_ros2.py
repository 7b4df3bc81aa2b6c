from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from keep_agent.robots import NotInstalled
from tests.keep_agent.robots.ros import ROOT


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
    from keep_agent.robots.ros2 import ros2

    with pytest.raises(ImportError) as caught:
        ros2("rclpy_that_is_not_there")
    assert isinstance(caught.value, NotInstalled)
