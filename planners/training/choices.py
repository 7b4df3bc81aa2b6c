"""Words and defaults of the trainer's options. Loads no torch, so a command line is checked before that."""

from __future__ import annotations

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("auto", "bfloat16", "float32")
HISTORY = "training.json"  # how a planner was trained, in its folder
TRANSCRIPT = 1500  # tokens of a trajectory
