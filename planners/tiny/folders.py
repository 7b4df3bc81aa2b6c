"""Folders of planners. Loads no torch, so that a mistyped option is refused without it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from memory.files.atomic import alone
from memory.files.folder_versions import latest

HISTORY = "training.json"  # the training record of a planner


def is_planner(folder: Path) -> bool:
    """Return whether the folder holds a trained planner, of any version."""
    return (latest(folder) / HISTORY).is_file()


def lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a planner's folder for its trainer. Raises ConfigError while another process holds the lock."""
    return alone(folder)
