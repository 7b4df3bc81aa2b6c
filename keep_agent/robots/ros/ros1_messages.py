"""ROS 1 imports, and message classes that are generated from their definitions, without a catkin build."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from keep_agent.robots.executor import NotInstalled
from keep_agent.robots.ros.messages import PACKAGE, PLAN_SERVICE, REPORT_SERVICE, TASK_ACTION

DEBIAN = "/usr/lib/python3/dist-packages"
REMEDY = (
    "install ROS 1 (Debian, Ubuntu: apt install python3-rospy python3-actionlib python3-std-msgs; "
    "elsewhere ros-noetic-ros-base, and source its setup.bash)"
)


def ros1(name: str) -> ModuleType:
    """Import a module of ROS 1, such as "rospy". Raises NotInstalled.

    If rospy is not on ``sys.path``, the folder of Debian's packages becomes the *last* entry of ``sys.path``. There it
    shadows no package of the virtual environment.
    """
    if find_spec("rospy") is None and DEBIAN not in sys.path and Path(DEBIAN, "rospy").is_dir():
        sys.path.append(DEBIAN)
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name} cannot be imported ({error}): {REMEDY}") from error


SEPARATOR = "\n" + "=" * 80 + "\n"  # separator of definitions in rosmsg's output
PART_SEPARATOR = "\n---\n"
ACTION_PARTS = ("Goal", "Result", "Feedback")
STANDARD = ("std_msgs/Header", "actionlib_msgs/GoalID", "actionlib_msgs/GoalStatus")


@dataclass(frozen=True, slots=True)
class MessageClasses:
    """Message classes of the action ``task`` and the services ``plan`` and ``report``."""

    task: type[Any]
    plan: type[Any]
    report: type[Any]


@cache
def message_classes() -> MessageClasses:
    """Make the classes of ``keep_agent_msgs``. Raises NotInstalled without ROS 1."""
    return MessageClasses(
        action(f"{PACKAGE}/Task", TASK_ACTION),
        service(f"{PACKAGE}/Plan", PLAN_SERVICE),
        service(f"{PACKAGE}/Report", REPORT_SERVICE),
    )


def action(name: str, text: str) -> type[Any]:
    """Make actionlib's message class of the action ``name`` ("package/Task") from the text of its .action file."""
    header = "Header header\n"
    status = f"{header}actionlib_msgs/GoalStatus status\n"
    definitions = {
        f"{name}Action": "".join(f"{name}Action{kind} action_{kind.lower()}\n" for kind in ACTION_PARTS),
        f"{name}ActionGoal": f"{header}actionlib_msgs/GoalID goal_id\n{name}Goal goal\n",
        f"{name}ActionResult": f"{status}{name}Result result\n",
        f"{name}ActionFeedback": f"{status}{name}Feedback feedback\n",
        **dict(zip((f"{name}{kind}" for kind in ACTION_PARTS), _split(text, 3), strict=True)),
    }
    return _generate(definitions | {known: _definition_of(known) for known in STANDARD})[f"{name}Action"]


def service(name: str, text: str) -> type[Any]:
    """Make rospy's class of the service ``name`` from the text of its .srv file."""
    request, response = _split(text, 2)
    classes_by_name = _generate({f"{name}Request": request, f"{name}Response": response})
    parts = {f"_{part.lower()}_class": classes_by_name[f"{name}{part}"] for part in ("Request", "Response")}
    return type(name.replace("/", "_"), (), {"_type": name, "_md5sum": _md5_of_service(name, text), **parts})


def _split(text: str, parts: int) -> list[str]:
    """Return the parts of a .srv or .action file; a part may be empty."""
    texts = f"\n{text}".split(PART_SEPARATOR)
    if len(texts) != parts:
        raise ValueError(f"{text!r} has {len(texts)} parts with --- between them; it needs {parts}")
    return [part.strip("\n") + "\n" for part in texts]


def _definition_of(name: str) -> str:
    package, _, kind = name.partition("/")
    return getattr(ros1(f"{package}.msg"), kind)._full_text.split(SEPARATOR)[0]


def _generate(definitions: Mapping[str, str]) -> dict[str, type[Any]]:
    """Return the message classes by type name. ``definitions`` maps type names to texts; the first uses the others."""
    dynamic = ros1("genpy.dynamic")
    names = list(definitions)
    text = SEPARATOR.join([definitions[names[0]], *(f"MSG: {name}\n{definitions[name]}" for name in names[1:])])
    return dynamic.generate_dynamic(names[0], text)


def _md5_of_service(name: str, text: str) -> str:
    loader, gentools = ros1("genmsg.msg_loader"), ros1("genmsg.gentools")
    context = loader.MsgContext.create_default()
    return gentools.compute_md5(context, loader.load_srv_from_string(context, text, name))
