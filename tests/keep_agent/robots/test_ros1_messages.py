"""Our classes are those that a compiled package would have: checked on packages that Debian has compiled."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import pytest

from keep_agent.robots.ros.messages import PACKAGE, TASK_ACTION
from keep_agent.robots.ros.ros1_messages import DEBIAN, action, classes, ros1, service
from tests.keep_agent.robots.ros import ROOT, need_ros1

TEST_ACTION = "int32 goal\n---\nint32 result\n---\nint32 feedback\n"
SET_BOOL = "bool data # e.g. for hardware\n---\nbool success\nstring message # informational\n"


@pytest.fixture(autouse=True)
def _ros() -> None:
    need_ros1()


def parts(spec: type) -> dict[str, str]:
    made = spec()
    inner = [made.action_goal, made.action_result, made.action_feedback]
    return {type(one)._type: one._md5sum for one in [made, *inner, inner[0].goal, inner[1].result, inner[2].feedback]}


def test_an_action_is_that_of_the_compiled_package() -> None:
    need_ros1("actionlib.msg")
    ours = action("actionlib/Test", TEST_ACTION)
    assert parts(ours) == parts(ros1("actionlib.msg").TestAction)
    assert len(parts(ours)) == 7


def test_an_action_without_fields_is_that_of_the_compiled_package() -> None:
    need_ros1("actionlib.msg")
    ours = action("actionlib/TwoInts", "int64 a\nint64 b\n---\nint64 sum\n---\n")
    assert parts(ours) == parts(ros1("actionlib.msg").TwoIntsAction)


@pytest.mark.parametrize(("name", "text"), [("SetBool", SET_BOOL), ("Empty", "---\n"), ("Trigger", None)])
def test_a_service_is_that_of_the_compiled_package(name: str, text: str | None) -> None:
    need_ros1("std_srvs.srv")
    compiled = getattr(ros1("std_srvs.srv"), name)
    text = "---\nbool success\nstring message\n" if text is None else text
    ours = service(f"std_srvs/{name}", text)
    assert (ours._type, ours._md5sum) == (compiled._type, compiled._md5sum)
    for part in ("_request_class", "_response_class"):
        assert getattr(ours, part)._md5sum == getattr(compiled, part)._md5sum


def test_what_is_written_is_read_again() -> None:
    goal = classes().task().action_goal
    goal.goal.task, goal.goal_id.id = "put the mug away — ☕", "one"
    buffer = BytesIO()
    goal.serialize(buffer)
    read = type(goal)().deserialize(buffer.getvalue())
    assert (read.goal.task, read.goal_id.id) == (goal.goal.task, "one")
    assert goal._type == f"{PACKAGE}/TaskActionGoal"


def test_a_definition_with_too_few_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="2 parts"):
        action("a/B", "int32 a\n---\nint32 b\n")
    assert TASK_ACTION.count("---") == 2


def test_debians_packages_come_last() -> None:
    """None of them takes the place of one in the virtual environment."""
    code = (
        "import sys\n"
        "from keep_agent.robots.ros.ros1_messages import ros1\n"
        "before = list(sys.path); ros1('rospy'); ros1('rospy')\n"
        "import yaml; print(sys.path[: len(before)] == before, sys.path.count(sys.argv[1]), yaml.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code, DEBIAN], capture_output=True, text=True, cwd=ROOT, check=True)
    kept, times, yaml = done.stdout.split()
    assert (kept, times) == ("True", "1")
    assert not yaml.startswith(DEBIAN)
