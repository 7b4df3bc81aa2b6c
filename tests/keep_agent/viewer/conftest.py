"""Fixtures of runs: with the bundled model, with pictures and no model, and synthetic."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.viewer_trace import Size, write_run
from envs.alfred.env import AlfredEnv
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.loop import run_episode
from keep_agent.rollout.run_folder import RunFolder, find_runs
from planners.base import RandomPlanner
from tests.keep_agent.rollout.houses import APPLE, MUG, episode
from tests.keep_agent.rollout.pictures import Pictured

SIZE = Size(steps=24, layers=6, segments=12)


def play(planner: str, folder: Path, *overrides: str) -> Path:
    """Evaluate a planner with the bundled model in a short run; return its folder."""
    options = [f"planner={planner}", "prompt.encoder=hashed", f"eval.out={folder}", "eval.episodes=2", "eval.threads=1"]
    options += ["env.max_steps=7", "eval.progress=false", "env.stream=2", *overrides]
    command = [sys.executable, "-m", "eval.alfred", *options]
    subprocess.run(command, cwd=folder.parent, check=True, capture_output=True)
    return next(folder.rglob("trace.jsonl")).parent


@pytest.fixture(scope="session")
def keep_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate KEEP in two streams of two tasks, with hops."""
    folder = shared(tmp_path_factory) / "keep"
    with folder.with_suffix(".lock").open("w") as lock:  # one process evaluates, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_runs(folder)[0] if folder.exists() else play("keep", folder)


def shared(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all processes of a test run share."""
    single = factory.getbasetemp()
    return single.parent if "PYTEST_XDIST_WORKER" in os.environ else single


@pytest.fixture(scope="session")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two failed episodes without a model, with a picture of every step."""
    run = RunFolder.create(tmp_path_factory.mktemp("random") / "run", {"planner": {"name": "random"}})
    for index, task in enumerate((MUG, APPLE)):
        house = episode(task)
        env = Pictured(AlfredEnv(skills="lota", observability="full", episodes=[house], max_steps=4))
        frames = Frames(house.id, "png")
        result, entries = run_episode(env, RandomPlanner(), house, index=index, skills="lota", seed=0, frames=frames)
        run.commit(result, entries, frames)
    return run.path


@pytest.fixture
def synthetic(tmp_path: Path) -> Path:
    return write_run(tmp_path / "synthetic", SIZE)
