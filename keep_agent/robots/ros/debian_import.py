"""ROS 1 inside a virtual environment: the one place that knows where Debian keeps it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from keep_agent.robots.errors import NotInstalled

DEBIAN = "/usr/lib/python3/dist-packages"
REMEDY = (
    "install ROS 1 (Debian, Ubuntu: apt install python3-rospy python3-actionlib python3-std-msgs; "
    "elsewhere ros-noetic-ros-base, and source its setup.bash)"
)


def ros1(name: str) -> ModuleType:
    """A module of ROS 1, such as "rospy". Raises NotInstalled if there is none.

    Where Python does not find it, Debian's packages become the *last* entry of ``sys.path``, so that none of them takes
    the place of one in the virtual environment.
    """
    _reach()
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name} cannot be imported ({error}): {REMEDY}") from error


def _reach() -> None:
    if find_spec("rospy") is None and DEBIAN not in sys.path and Path(DEBIAN, "rospy").is_dir():
        sys.path.append(DEBIAN)
