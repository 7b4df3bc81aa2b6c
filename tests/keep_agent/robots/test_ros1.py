"""A real roscore, our node in a process of its own, and a client in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.keep_agent.robots.houses import CLEAN_MUG as TASK
from tests.keep_agent.robots.ros import CLEAN_MUG, NODE, ROOT, SCRIPTED, client, need_ros1, node, process, roscore
from tests.waiting import PATIENCE

SUCCEEDED, PREEMPTED, ABORTED = 3, 2, 4
HURRIED = ("--executor", "tests.keep_agent.robots.houses:hurried")
FAST = ("--limit-period", "0.02", "--limit-cancel", str(PATIENCE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ros")


@pytest.fixture(scope="module")
def ros(folder: Path) -> Iterator[dict[str, str]]:
    need_ros1(master=True)
    with roscore(folder) as env:
        yield env


def said(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_goal_is_reached_and_seen_by_all(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *SCRIPTED, *CLEAN_MUG, *FAST, name="reaches", TEST_SECONDS="0.05"):
        heard = said(client(ros, "do", "reaches", TASK))
        late = said(client(ros, "late", "reaches", TASK))
    assert heard["state"] == SUCCEEDED
    assert heard["success"], heard["report"]
    assert "success after" in heard["report"]
    assert any(text.startswith("next: ") for text in heard["feedback"])
    assert any("on the way" in text for text in heard["feedback"])
    states = [status["state"] for status in heard["statuses"]]
    assert {"planning", "executing", "idle"} <= set(states)
    last = heard["statuses"][-1]
    assert (last["state"], last["success"], last["stop"], last["instruction"]) == ("idle", True, "done", TASK)
    assert last["step"] > 3
    assert late["statuses"][-1] == last, "the status is latched"


def test_a_cancelled_goal_stops_the_robot(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *SCRIPTED, *CLEAN_MUG, *FAST, name="cancels", TEST_SECONDS="1000"):
        heard = said(client(ros, "cancel", "cancels", TASK))
    assert heard["state"] == PREEMPTED
    assert not heard["success"]
    last = heard["statuses"][-1]
    assert (last["stop"], last["success"], last["ok"]) == ("stopped", False, False)
    assert "cancelled before anything had changed" in last["message"]


def test_a_new_goal_takes_the_place_of_the_old(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *SCRIPTED, *HURRIED, *FAST, name="replaces", TEST_SECONDS="1000"):
        heard = said(client(ros, "replace", "replaces", TASK))
    assert (heard["state"], heard["second"]) == (PREEMPTED, SUCCEEDED)
    stops = [status["stop"] for status in heard["statuses"] if status["stop"]]
    assert stops == ["stopped", "done"]


def test_plans_facts_and_reports_without_a_task(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *SCRIPTED, *CLEAN_MUG, name="plans"):
        planned, reported, again, nothing, blank = said(client(ros, "plan", "plans", TASK))["answers"]
    assert planned["ok"] and planned["skill"], planned
    assert reported == {"ok": True, "report": ""}
    assert not again["ok"] and "no plan to report on" in again["report"]
    assert not nothing["ok"] and not nothing["skill"]
    assert not blank["ok"] and "instruction" in blank["report"]


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize(
    ("number", "asks"), [(signal.SIGTERM, "insist"), pytest.param(signal.SIGINT, "do", marks=pytest.mark.slow)]
)
def test_the_node_ends_when_it_is_told_to(ros: dict[str, str], folder: Path, number: int, asks: str) -> None:
    """In the middle of a skill: its client hears of it, and the process is gone soon."""
    name = f"ends_{int(number)}"
    script = [sys.executable, str(Path(__file__).with_name("ros_client.py")), asks, name, TASK]
    with node(ros, folder, *SCRIPTED, *CLEAN_MUG, *FAST, name=name, TEST_SECONDS="1000") as started:
        asking = subprocess.Popen(script, env=ros, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        waiting = [sys.executable, "-c", WAIT_UNTIL_EXECUTING, name]
        subprocess.run(waiting, env=ros, cwd=ROOT, check=True)
        os.kill(started.pid, number)
        assert started.wait(PATIENCE) == 130
        heard = json.loads(asking.communicate()[0].splitlines()[-1])
    assert heard["state"] == ABORTED
    reports = [status["report"] for status in heard["statuses"] if status["report"]]  # the last may be lost: no answer
    assert all(report.endswith("stopped (the planner is shut down)") for report in (heard["report"], *reports))
    assert max(status["step"] for status in heard["statuses"]) == 1, "nothing was begun after that"


WAIT_UNTIL_EXECUTING = """
import json, sys, threading
from keep_agent.robots.ros.ros1_messages import ros1
rospy, moving = ros1("rospy"), threading.Event()
rospy.init_node("waits", anonymous=True, disable_signals=True)
look = lambda message: json.loads(message.data)["state"] == "executing" and moving.set()
rospy.Subscriber(f"{sys.argv[1]}/status", ros1("std_msgs.msg").String, look)
assert moving.wait()
"""


def test_without_a_master_the_command_says_so(tmp_path: Path) -> None:
    need_ros1()
    env = os.environ | {"ROS_MASTER_URI": "http://localhost:1", "ROS_LOG_DIR": str(tmp_path)}
    done = subprocess.run([*NODE, *SCRIPTED], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no ROS master answers at http://localhost:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_real_planner_reaches_the_goal(ros: dict[str, str], folder: Path) -> None:
    if find_spec("keep_agent.agent.agent") is None:
        pytest.skip("needs keep_agent.agent.agent")
    options = ["--planner", "tests.keep_agent.robots.houses:keep_planner", *CLEAN_MUG]
    with node(ros, folder, *options, name="thinks", TEST_SECONDS="0.1"):
        heard = said(client(ros, "do", "thinks", TASK))
    assert heard["state"] == SUCCEEDED, heard["report"]
    assert heard["statuses"][-1]["stop"] == "done"


def test_processes_are_ended_even_if_they_do_not_listen(tmp_path: Path) -> None:
    """The helper of these tests leaves nothing behind."""
    with process([sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ), tmp_path / "log") as started:
        pass
    assert started.poll() is not None
