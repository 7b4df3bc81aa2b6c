"""Reproducibility: the same command in two processes with different hash seeds gives the same trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.eval.workers.runs import the_run, traces

ROOT = Path(__file__).parents[3]
SETTING = (
    "planner=keep", "prompt.style=linked", "prompt.encoder=hashed", "prompt.budget=12", "env.skills=grounded",
    "env.observability=partial", "env.stream=2", "env.max_steps=6", "eval.episodes=2", "eval.threads=1",
)  # fmt: skip


def start(model: Path, out: Path, hash_seed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eval.alfred", *SETTING, f"model={model}", f"eval.out={out}"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def test_two_processes_write_the_same_trace(tiny_model: Path, tmp_path: Path) -> None:
    outs = {seed: tmp_path / seed for seed in ("1", "2")}
    processes = [start(tiny_model, out, seed) for seed, out in outs.items()]
    assert [process.wait() for process in processes] == [0, 0]
    first, second = (traces(the_run(out)) for out in outs.values())
    entries = [entry for episode in first.values() for entry in episode]
    assert sum(entry["event"] == "step" for entry in entries) >= 4 and any(entry.get("scores") for entry in entries)
    assert first == second
