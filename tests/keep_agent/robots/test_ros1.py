"""ROS 1 node with a roscore and a client, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keep_agent.robots import ros as ros_helpers
from tests.keep_agent.robots.houses import CLEAN_MUG as TASK
from tests.keep_agent.robots.ros import CLEAN_MUG, ROOT, SCRIPTED, need_ros1, node
from tests.waiting import PATIENCE

SUCCEEDED, PREEMPTED, ABORTED = 3, 2, 4
EXPERT = (*SCRIPTED, *CLEAN_MUG)
FAST = ("--limit-period", "0.02", "--limit-cancel", str(PATIENCE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ros")


@pytest.fixture(scope="module")
def ros(folder: Path) -> Iterator[dict[str, str]]:
    need_ros1(master=True)
    with ros_helpers.roscore(folder) as env:
        yield env


def run_client(env: dict[str, str], action: str, name: str) -> dict:
    command = ros_helpers.client_command(action, name, TASK)
    client = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert client.returncode == 0, client.stderr
    return json.loads(client.stdout.splitlines()[-1])


def test_goal_is_reached_with_feedback_and_statuses(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *EXPERT, *FAST, name="reaches", TEST_SECONDS="0.05"):
        result = run_client(ros, "do", "reaches")
        late = run_client(ros, "late", "reaches")
    assert (result["state"], result["success"]) == (SUCCEEDED, True) and "success after" in result["report"]
    assert any(text.startswith("next: ") for text in result["feedback"])
    assert any("on the way" in text for text in result["feedback"])
    assert {"planning", "executing", "idle"} <= {status["state"] for status in result["statuses"]}
    last = result["statuses"][-1]
    assert (last["state"], last["success"], last["stop"], last["instruction"]) == ("idle", True, "done", TASK)
    assert last["step"] > 3
    assert late["statuses"][-1] == last, "the status is latched"


def test_cancelled_goal_stops_the_robot(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *EXPERT, *FAST, name="cancels", TEST_SECONDS="1000"):
        result = run_client(ros, "cancel", "cancels")
    assert (result["state"], result["success"]) == (PREEMPTED, False)
    last = result["statuses"][-1]
    assert (last["stop"], last["success"], last["ok"]) == ("stopped", False, False)
    assert "cancelled before anything had changed" in last["message"]


def test_new_goal_replaces_the_old_one(ros: dict[str, str], folder: Path) -> None:
    hurried = ("--executor", "tests.keep_agent.robots.houses:hurried")
    with node(ros, folder, *SCRIPTED, *hurried, *FAST, name="replaces", TEST_SECONDS="1000"):
        result = run_client(ros, "replace", "replaces")
    assert (result["state"], result["second"]) == (PREEMPTED, SUCCEEDED)
    assert [status["stop"] for status in result["statuses"] if status["stop"]] == ["stopped", "done"]


def test_services_plan_and_report(ros: dict[str, str], folder: Path) -> None:
    with node(ros, folder, *EXPERT, name="plans"):
        plan, report, second_report, no_skills, blank = run_client(ros, "plan", "plans")["answers"]
    assert plan["ok"] and plan["skill"], plan
    assert report == {"ok": True, "report": ""}
    assert not second_report["ok"] and "no plan to report on" in second_report["report"]
    assert not no_skills["ok"] and not no_skills["skill"]
    assert not blank["ok"] and "instruction" in blank["report"]


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_ends_the_node_during_a_skill(ros: dict[str, str], folder: Path, number: int) -> None:
    """The client receives the result, and no further skill begins."""
    name, action = f"ends_{int(number)}", "insist" if number == signal.SIGTERM else "do"
    with node(ros, folder, *EXPERT, *FAST, name=name, TEST_SECONDS="1000") as child:
        command = ros_helpers.client_command(action, name, TASK)
        client = subprocess.Popen(command, env=ros, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        run_client(ros, "wait", name)
        os.kill(child.pid, number)
        assert child.wait(PATIENCE) == 130
        result = json.loads(client.communicate()[0].splitlines()[-1])
    assert result["state"] == ABORTED
    reports = [status["report"] for status in result["statuses"] if status["report"]]  # the last status may be lost
    assert all(report.endswith("stopped (the planner is shut down)") for report in (result["report"], *reports))
    assert max(status["step"] for status in result["statuses"]) == 1


def test_command_reports_a_missing_master(tmp_path: Path) -> None:
    need_ros1()
    env = os.environ | {"ROS_MASTER_URI": "http://localhost:1", "ROS_LOG_DIR": str(tmp_path)}
    assert "no ROS master answers at http://localhost:1" in ros_helpers.refusal([*ros_helpers.NODE, *SCRIPTED], env)


@pytest.mark.slow
def test_planner_with_a_model_reaches_the_goal(ros: dict[str, str], folder: Path) -> None:
    options = ["--planner", "tests.keep_agent.robots.houses:keep_planner", *CLEAN_MUG]
    with node(ros, folder, *options, name="thinks", TEST_SECONDS="0.1"):
        result = run_client(ros, "do", "thinks")
    assert result["state"] == SUCCEEDED, result["report"]
    assert result["statuses"][-1]["stop"] == "done"
