"""Log of synced and renamed files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import pytest


def log_of_disk(monkeypatch: pytest.MonkeyPatch, renaming: Literal["rename", "replace"]) -> list[str]:
    """Return a list to which every ``fsync`` ("folder", or "file" with its size) and every new name is appended."""
    calls: list[str] = []
    fsync, rename = os.fsync, getattr(Path, renaming)

    def noted_fsync(number: int) -> None:
        state = os.fstat(number)
        calls.append("folder" if stat.S_ISDIR(state.st_mode) else f"file {state.st_size}")
        fsync(number)

    def noted_rename(source: Path, target: Path) -> Path:
        calls.append(f"name {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, renaming, noted_rename)
    return calls
