"""Folders of planners. Loads no torch, so that a mistyped option is refused without it."""

from __future__ import annotations

from pathlib import Path

from memory.files.folder_versions import latest

HISTORY = "training.json"  # the training record of a planner


def is_planner(folder: Path) -> bool:
    """Return whether the folder holds a trained planner, of any version."""
    return (latest(folder) / HISTORY).is_file()
