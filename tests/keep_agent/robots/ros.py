"""ROS master for tests, and processes that use it."""

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


def need_ros1(*modules: str, master: bool = False) -> None:
    """Skip a test without ROS 1, ``modules`` and, for ``master``, roscore; fail it in continuous integration."""
    missing = ["roscore"] if master and shutil.which("roscore") is None else []
    for name in (*NEEDED, *modules):
        try:
            ros1(name)
        except NotInstalled:
            missing.append(name)
    if missing:
        remedy = f"needs ROS 1, {', '.join(missing)} is missing: apt install {' '.join(PACKAGES)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@contextmanager
def process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """Run a process with unbuffered output to ``log``; terminate it after the block, and kill it after `GRACE`."""
    env = env | {"PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=output)
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def roscore(folder: Path) -> Iterator[dict[str, str]]:
    """Run a master; yield the environment of its clients."""
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
    """Wait for a text in the log; fail if the process ends without it."""

    def has_line() -> bool:
        code, present = of.poll(), text in log.read_text(errors="replace")
        assert present or code is None, f"ended with {code}: {log.read_text(errors='replace')}"
        return present

    until(has_line, lambda: log.read_text(errors="replace"))


@contextmanager
def node(env: dict[str, str], folder: Path, *options: str, name: str = "keep_agent", **variables: str) -> Iterator:
    """Run this project's node until the end of the block; it accepts goals when the block begins."""
    log = folder / f"{name}.log"
    with process([*NODE, "--name", name, *options], env | variables, log) as child:
        wait_for_line(log, "listening on", child)
        yield child


def refusal(command: list[str], env: dict[str, str] | None = None) -> str:
    """Run a command that exits with code 2; return its one line of standard error."""
    child = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    assert (child.returncode, len(child.stderr.splitlines())) == (2, 1), child.stderr
    return child.stderr


def client_command(*arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("ros_client.py")), *arguments]
