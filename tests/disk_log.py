"""What is synced and renamed, in which order."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import pytest


def log_of_disk(monkeypatch: pytest.MonkeyPatch, renaming: Literal["rename", "replace"]) -> list[str]:
    """A list that grows with every ``fsync`` ("folder", or "file" with its size) and with the names that are given."""
    calls: list[str] = []
    fsync, rename = os.fsync, getattr(Path, renaming)

    def noted_fsync(number: int) -> None:
        found = os.fstat(number)
        calls.append("folder" if stat.S_ISDIR(found.st_mode) else f"file {found.st_size}")
        fsync(number)

    def noted_rename(source: Path, target: Path) -> Path:
        calls.append(f"name {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, renaming, noted_rename)
    return calls
