"""Folder of a server: one process has it at a time. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from keep_agent.agent.durable import claim

LOCK = "lock"


def claimed(folder: Path) -> BinaryIO:
    """A file that no other process holds until it is closed. Raises ConfigError if one does."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = (folder / LOCK).open("ab")
    claim(stream, folder)
    return stream
