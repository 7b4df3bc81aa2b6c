"""Library of the runs below a folder (a run, experiments, or a server's agents), and the pictures of runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keep_agent.errors import DataError
from keep_agent.rollout.frames import FRAMES
from keep_agent.rollout.run_folder import CONFIG, TRACE, read_config
from keep_agent.viewer.trace_index import TraceIndex

MEDIA_TYPES = {".jpg": "image/jpeg", ".png": "image/png"}


@dataclass(frozen=True)
class Run:
    """One run folder; ``key`` is its path below the library's root, "." for the root itself."""

    key: str
    path: Path
    index: TraceIndex

    @property
    def method(self) -> str:
        """Name of the planner in the run's config; empty if the config names no planner."""
        try:
            planner = read_config(self.path).get("planner")
        except (DataError, OSError, AttributeError):
            return ""
        name = planner.get("name") if isinstance(planner, dict) else planner
        return str(name or "")


class RunLibrary:
    """Runs below a root, searched at every call of `runs`. A run's trace index is cached while the run exists."""

    def __init__(self, root: Path | Callable[[], Path]) -> None:
        self._root = root
        self._runs: dict[Path, Run] = {}
        self._lock = threading.Lock()

    @property
    def root(self) -> Path:
        return self._root() if callable(self._root) else self._root

    def runs(self) -> list[Run]:
        """Search for runs; return them sorted by key."""
        root = self.root
        with self._lock:
            self._runs = {path: self._run(root, path) for path in sorted(_trace_folders(root))}
            return list(self._runs.values())

    def run(self, key: str) -> Run:
        """Return a run; search again if it is not in the last result. Raises DataError."""
        with self._lock:
            known = [run for run in self._runs.values() if (run.path / TRACE).exists()]
        if all(run.key != key for run in known):
            known = self.runs()
        for run in known:
            if run.key == key:
                return run
        raise DataError(f"no run {key!r} under {self.root}: choose one from the list")

    def _run(self, root: Path, path: Path) -> Run:
        key = path.relative_to(root).as_posix()
        known = self._runs.get(path)
        return known if known is not None and known.key == key else Run(key, path, TraceIndex(path / TRACE))


def check_root(root: Path) -> None:
    """Raise DataError for a path without runs."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: name a run folder, or a folder of runs")
    if next(_trace_folders(root), None) is None and not (root / CONFIG).exists():
        raise DataError(f"no run under {root}: name a run folder, in which eval has written a {TRACE}")


def _trace_folders(root: Path) -> Iterator[Path]:
    """Yield folders with a trace. Picture folders and hidden folders are skipped, links are not followed."""
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name != FRAMES and not name.startswith(".")]
        if TRACE in files:
            yield Path(folder)


def picture(run: Path, name: str) -> Path:
    """Return the file that a trace names as ``frame``. Raises DataError if it is missing or in another folder."""
    folder = (run / FRAMES).resolve()
    path = (run / name).resolve()  # resolves links, so that none leads out of the folder
    if path.suffix not in MEDIA_TYPES or not path.is_relative_to(folder) or folder.parent != run.resolve():
        raise DataError(f"the trace names {name!r}, which is not a picture in {run / FRAMES}; it is not shown")
    if not path.is_file():
        raise DataError(f"{run / name} is missing: copy the run together with its {FRAMES}")
    return path
