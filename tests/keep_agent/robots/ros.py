"""A ROS master of a test's own, and processes that talk to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keep_agent.robots import NotInstalled
from keep_agent.robots.ros.ros1_messages import ros1
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
GRACE = 20.0  # seconds until a process that does not end is killed
NEEDED = ("rospy", "rosgraph", "actionlib", "genpy.dynamic", "genmsg.gentools", "std_msgs.msg", "actionlib_msgs.msg")
PACKAGES = ("python3-rospy", "python3-roslaunch", "python3-actionlib", "python3-rosout", "python3-std-srvs")
NODE = [sys.executable, "-m", "keep_agent.robots.ros1"]
SCRIPTED = ["--planner", "keep_agent.robots.scripted:ScriptedPlanning"]
CLEAN_MUG = ["--executor", "tests.keep_agent.robots.houses:clean_mug"]


def importable(name: str) -> bool:
    """Whether a module of ROS 1 can be imported."""
    try:
        ros1(name)
    except NotInstalled:
        return False
    return True


def need_ros1(*modules: str, master: bool = False) -> None:
    """Skips where something is missing that a test needs; in continuous integration that is a failure.

    ``modules``: beside those that our own side needs; ``master``: a roscore, too.
    """
    missing = [name for name in (*NEEDED, *modules) if not importable(name)]
    missing += ["roscore"] if master and shutil.which("roscore") is None else []
    if not missing:
        return
    remedy = f"needs ROS 1, {', '.join(missing)} is missing: apt install {' '.join(PACKAGES)}"
    if os.environ.get("CI"):
        pytest.fail(remedy)
    pytest.skip(remedy)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@contextmanager
def process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """Ended politely, and at last by force. What it says stands in ``log`` at once."""
    env = env | {"PYTHONUNBUFFERED": "1"}  # roscore's output is Python's
    with log.open("wb") as output:
        started = subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=output)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(GRACE)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


@contextmanager
def roscore(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of those who are to talk to it."""
    port = free_port()
    env = os.environ | {
        "ROS_MASTER_URI": f"http://localhost:{port}",
        "ROS_HOSTNAME": "localhost",
        "HOME": str(folder),
        "ROS_HOME": str(folder / "ros"),
        "ROS_LOG_DIR": str(folder / "log"),
        "PYTHONPATH": str(ROOT),
    }
    system = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with process(["roscore", "-p", str(port)], system, folder / "roscore.log") as core:
        wait_for_line(folder / "roscore.log", "started core service", core)
        yield env


def wait_for_line(log: Path, text: str, of: subprocess.Popen) -> None:
    def said() -> bool:
        """Whether it did, or the process is there to say it still."""
        ended, found = of.poll(), text in log.read_text(errors="replace")
        assert found or ended is None, f"ended with {ended}: {log.read_text(errors='replace')}"
        return found

    until(said, lambda: log.read_text(errors="replace"))


@contextmanager
def node(env: dict[str, str], folder: Path, *options: str, name: str = "keep_agent", **more: str) -> Iterator:
    """Our node, ready for goals."""
    log = folder / f"{name}.log"
    with process([*NODE, "--name", name, *options], env | more, log) as started:
        wait_for_line(log, "listening on", started)
        yield started


def client(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    """``ros_client.py`` in a process of its own, to its end."""
    script = Path(__file__).with_name("ros_client.py")
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
