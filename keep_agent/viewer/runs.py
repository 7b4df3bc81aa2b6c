"""The runs under a folder: a run itself, a folder of experiments, or a server's agents."""

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


@dataclass(frozen=True)
class Run:
    """One run folder; ``key`` is its path from the root, "." for the root itself."""

    key: str
    path: Path
    index: TraceIndex

    @property
    def method(self) -> str:
        """What its config calls the planner; empty where none is saved."""
        try:
            planner = read_config(self.path).get("planner")
        except (DataError, OSError, AttributeError):
            return ""
        name = planner.get("name") if isinstance(planner, dict) else planner
        return str(name or "")


class Library:
    """Runs below a root, found anew at every look. An index lives as long as its run is there."""

    def __init__(self, root: Path | Callable[[], Path]) -> None:
        self._root = root
        self._runs: dict[Path, Run] = {}
        self._lock = threading.Lock()

    @property
    def root(self) -> Path:
        return self._root() if callable(self._root) else self._root

    def runs(self) -> list[Run]:
        """Sorted by key; none where there is no folder or no trace in it."""
        root = self.root
        with self._lock:
            self._runs = {path: self._run(root, path) for path in sorted(_traced(root))}
            return list(self._runs.values())

    def run(self, key: str) -> Run:
        """Raises DataError for a key that is none of the runs'."""
        found = next((run for run in self._known(key) if run.key == key), None)
        if found is None:
            raise DataError(f"no run {key!r} under {self.root}: choose one from the list")
        return found

    def _known(self, key: str) -> list[Run]:
        """The runs as they were found last, or found anew if the key is not among them."""
        with self._lock:
            known = [run for run in self._runs.values() if (run.path / TRACE).exists()]
        return known if any(run.key == key for run in known) else self.runs()

    def _run(self, root: Path, path: Path) -> Run:
        key = path.relative_to(root).as_posix()
        known = self._runs.get(path)
        return known if known is not None and known.key == key else Run(key, path, TraceIndex(path / TRACE))


def check_root(root: Path) -> None:
    """Raises DataError for a path that the viewer has nothing to show of."""
    if not root.is_dir():
        raise DataError(f"{root} is no folder: name a run folder, or one that holds some")
    if next(_traced(root), None) is None and not (root / CONFIG).exists():
        raise DataError(f"no run under {root}: name a folder with a {TRACE} in it, as eval prints it")


def _traced(root: Path) -> Iterator[Path]:
    """Folders with a trace. Pictures and hidden folders are not searched, links not followed."""
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name != FRAMES and not name.startswith(".")]
        if TRACE in files:
            yield Path(folder)
