"""Run that is killed repeatedly with SIGKILL and resumed: equal to an uninterrupted run."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keep_agent.rollout.run_folder import SUMMARY, TRACE, find_runs
from keep_agent.rollout.trace import read_trace

SETTINGS = ("planner=random", "eval.episodes=400", "env.skills=grounded")
KILLS = 8


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eval.alfred", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)


def committed_bytes(folder: Path) -> int:
    """Return the size of the written episodes."""
    return sum(path.stat().st_size for path in folder.glob("*/episodes.jsonl"))


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_trace(tmp_path: Path) -> None:
    assert start(tmp_path, *SETTINGS, "eval.out=whole").wait() == 0
    rng, size, kills = random.Random(0), 0, 0
    process = start(tmp_path, *SETTINGS, "eval.out=killed")
    for _ in range(KILLS):
        while (
            committed_bytes(tmp_path / "killed") <= size and process.poll() is None
        ):  # until it has written an episode
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        kills += process.poll() is None
        process.kill()
        process.wait()
        size = committed_bytes(tmp_path / "killed")
        (run,) = find_runs(tmp_path / "killed")
        process = start(tmp_path, f"eval.resume={run}")
    assert process.wait() == 0
    assert kills >= KILLS // 2
    (whole,) = find_runs(tmp_path / "whole")
    assert list(read_trace(run / TRACE)) == list(read_trace(whole / TRACE))
    assert (run / SUMMARY).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "killed"}, "no empty folder remains"
