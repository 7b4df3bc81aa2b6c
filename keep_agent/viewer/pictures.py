"""Pictures that a trace names: nothing else is ever handed out."""

from __future__ import annotations

from pathlib import Path

from keep_agent.errors import DataError
from keep_agent.rollout.frames import FRAMES

KINDS = {".jpg": "image/jpeg", ".png": "image/png"}


def picture(run: Path, name: str) -> Path:
    """The file of a trace's ``frame``. Raises DataError for one outside the run's pictures, or that is not there."""
    folder = (run / FRAMES).resolve()
    path = (run / name).resolve()  # follows links, so that none leads out
    if path.suffix not in KINDS or not path.is_relative_to(folder) or folder.parent != run.resolve():
        raise DataError(f"the trace names {name!r}, which is no picture in {run / FRAMES}; it is not shown")
    if not path.is_file():
        raise DataError(f"{run / name} is not there: copy the run together with its {FRAMES}")
    return path
