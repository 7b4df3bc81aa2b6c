"""Lock of a server's folder: one process uses it at a time. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from keep_agent.agent.durable import claim


def lock_folder(folder: Path) -> BinaryIO:
    """Return a file whose lock this process holds until it is closed. Raises ConfigError if another one does."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = (folder / "lock").open("ab")
    claim(stream, folder)
    return stream
