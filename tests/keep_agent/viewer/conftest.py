"""Runs to look at: a real one with the bundled model, a real one with pictures and no model, and a synthetic one."""

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
from planners.baselines import RandomPlanner
from tests.keep_agent.rollout.houses import APPLE, MUG, episode
from tests.keep_agent.rollout.pictures import Pictured

SIZE = Size(steps=24, layers=6, segments=12)


def play(planner: str, folder: Path, *overrides: str) -> Path:
    """A short run of the bundled model as its user makes it; its folder."""
    setting = [f"planner={planner}", "prompt.encoder=hashed", f"eval.out={folder}"]
    more = ["eval.episodes=2", "eval.threads=1", "env.max_steps=7", "eval.progress=false", "env.stream=2"]
    command = [sys.executable, "-m", "eval.alfred", *setting, *more, *overrides]
    subprocess.run(command, cwd=folder.parent, check=True, capture_output=True)
    return next(folder.rglob("trace.jsonl")).parent


@pytest.fixture(scope="session")
def keep_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two streams of two tasks by KEEP, with hops."""
    folder = shared(tmp_path_factory) / "keep"
    with folder.with_suffix(".lock").open("w") as lock:  # one process plays it, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_runs(folder)[0] if folder.exists() else play("keep", folder)


def shared(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a test run have in common, or the only one's own."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes without a model, with a picture of every step; it fails."""
    run = RunFolder.create(tmp_path_factory.mktemp("random") / "run", {"planner": {"name": "random"}})
    for index, task in enumerate((MUG, APPLE)):
        played = episode(task)
        env = Pictured(AlfredEnv(skills="lota", observability="full", episodes=[played], max_steps=4))
        frames = Frames(played.id, "png")
        planner = RandomPlanner()
        result, entries = run_episode(env, planner, played, index=index, skills="lota", seed=0, frames=frames)
        run.commit(result, entries, frames)
    return run.path


@pytest.fixture
def synthetic(tmp_path: Path) -> Path:
    return write_run(tmp_path / "synthetic", SIZE)
