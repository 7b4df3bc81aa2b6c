"""The same command in two processes whose hashes differ: the same prompts, choices and numbers, down to every score."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from keep_agent.rollout.run_folder import TRACE, find_runs
from keep_agent.rollout.trace import Entry, read_trace

ROOT = Path(__file__).parents[3]
SETTING = (
    "planner=keep", "prompt.style=linked", "prompt.encoder=hashed", "prompt.budget=12", "env.skills=grounded",
    "env.observability=partial", "env.stream=2", "env.max_steps=6", "eval.episodes=2", "eval.threads=1",
)  # fmt: skip
CLOCK = {"timings", "loads", "computes"}


def start(model: Path, out: Path, hash_seed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eval.alfred", *SETTING, f"model={model}", f"eval.out={out}"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def timeless(out: Path) -> list[Entry]:
    (run,) = find_runs(out)
    return [{key: value for key, value in entry.items() if key not in CLOCK} for entry in read_trace(run / TRACE)]


def test_two_processes_leave_the_same_trace(tiny_model: Path, tmp_path: Path) -> None:
    outs = {seed: tmp_path / seed for seed in ("1", "2")}
    running = [start(tiny_model, out, seed) for seed, out in outs.items()]
    assert [process.wait() for process in running] == [0, 0]
    one, two = map(timeless, outs.values())
    assert sum(entry["event"] == "step" for entry in one) >= 4 and any(entry.get("scores") for entry in one)
    assert one == two
