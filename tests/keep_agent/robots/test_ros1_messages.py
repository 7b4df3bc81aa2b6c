"""Generated ROS 1 classes, compared with those of compiled Debian packages."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import pytest

from keep_agent.robots.ros.messages import PACKAGE, TASK_ACTION
from keep_agent.robots.ros.ros1_messages import DEBIAN, action, message_classes, ros1, service
from tests.keep_agent.robots.ros import ROOT, need_ros1

TEST_ACTION = "int32 goal\n---\nint32 result\n---\nint32 feedback\n"
EMPTY_FEEDBACK = "int64 a\nint64 b\n---\nint64 sum\n---\n"
SET_BOOL = "bool data # e.g. for hardware\n---\nbool success\nstring message # informational\n"
TRIGGER = "---\nbool success\nstring message\n"


@pytest.fixture(autouse=True)
def _ros() -> None:
    need_ros1()


def checksums(spec: type) -> dict[str, str]:
    task = spec()
    goal, result, feedback = task.action_goal, task.action_result, task.action_feedback
    messages = [task, goal, result, feedback, goal.goal, result.result, feedback.feedback]
    return {type(message)._type: message._md5sum for message in messages}


@pytest.mark.parametrize(("name", "text"), [("Test", TEST_ACTION), ("TwoInts", EMPTY_FEEDBACK)])
def test_action_equals_that_of_the_compiled_package(name: str, text: str) -> None:
    need_ros1("actionlib.msg")
    generated = checksums(action(f"actionlib/{name}", text))
    assert generated == checksums(getattr(ros1("actionlib.msg"), f"{name}Action")) and len(generated) == 7


@pytest.mark.parametrize(("name", "text"), [("SetBool", SET_BOOL), ("Empty", "---\n"), ("Trigger", TRIGGER)])
def test_service_equals_that_of_the_compiled_package(name: str, text: str) -> None:
    need_ros1("std_srvs.srv")
    compiled, generated = getattr(ros1("std_srvs.srv"), name), service(f"std_srvs/{name}", text)
    assert (generated._type, generated._md5sum) == (compiled._type, compiled._md5sum)
    for part in ("_request_class", "_response_class"):
        assert getattr(generated, part)._md5sum == getattr(compiled, part)._md5sum


def test_serialized_goal_can_be_read() -> None:
    goal = message_classes().task().action_goal
    goal.goal.task, goal.goal_id.id = "put the mug away — ☕", "first"
    buffer = BytesIO()
    goal.serialize(buffer)
    read = type(goal)().deserialize(buffer.getvalue())
    assert (read.goal.task, read.goal_id.id) == (goal.goal.task, "first")
    assert goal._type == f"{PACKAGE}/TaskActionGoal"


def test_definition_with_too_few_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="2 parts"):
        action("a/B", "int32 a\n---\nint32 b\n")
    assert TASK_ACTION.count("---") == 2


def test_debian_packages_come_last_in_the_path() -> None:
    """Packages of the virtual environment have precedence."""
    code = (
        "import sys\n"
        "from keep_agent.robots.ros.ros1_messages import ros1\n"
        "before = list(sys.path); ros1('rospy'); ros1('rospy')\n"
        "import yaml; print(sys.path[: len(before)] == before, sys.path.count(sys.argv[1]), yaml.__file__)"
    )
    child = subprocess.run([sys.executable, "-c", code, DEBIAN], capture_output=True, text=True, cwd=ROOT, check=True)
    unchanged, count, yaml = child.stdout.split()
    assert (unchanged, count) == ("True", "1") and not yaml.startswith(DEBIAN)
