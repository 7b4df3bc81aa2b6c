"""Folders of planners. Loads no torch, so a command line is checked before that."""

from __future__ import annotations

from pathlib import Path

from memory.files.folder_versions import latest
from planners.training.choices import HISTORY


def is_planner(folder: Path) -> bool:
    """Whether there is one that was trained, of whatever version."""
    return (latest(folder) / HISTORY).is_file()
