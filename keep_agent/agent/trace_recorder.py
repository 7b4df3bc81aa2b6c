"""An agent's trace on disk while it goes on: run folders that the viewer opens, the newest of them growing."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from keep_agent.errors import DataError, KeepError
from keep_agent.rollout.run_folder import CONFIG, TRACE, bound, opening
from keep_agent.rollout.trace import Entry, agent_entry
from memory.files.json_lines import LineFile
from memory.files.sealed_json import write_sealed

MOST = 64 << 20  # bytes of a trace, after which the next one begins
KEPT = 2  # of an agent's folders
T = TypeVar("T")
log = logging.getLogger(__name__)


class Recorder:
    """Takes entries. A trace is a convenience: where it cannot be written the agent goes on without.

    :param root: holds ``NAME.1``, ``NAME.2``, ...
    :param config: what the viewer shows as the run's
    """

    def __init__(self, root: Path, stem: str, agent: str, config: Mapping[str, Any], most: int = MOST) -> None:
        self._root, self._stem, self._agent, self._config, self._most = root, stem, agent, config, most
        self._failed = False
        self._trace: LineFile | None = None  # the file that is written to
        self._texts: dict[str, str] = {}  # of segments, by id
        self._facts: dict[str, Entry] = {}  # by id
        self._bare = False  # the folder has no step yet

    def __call__(self, entry: Entry) -> None:
        if self._failed or entry["event"] == "episode":  # each folder begins with one of its own
            return
        try:
            trace = self._growing()
            trace.append([self._told(entry)], synced=False)
        except (KeepError, OSError) as error:
            log.warning("the trace of agent %r ends: %s", self._agent, error)
            self._failed = True

    def remove(self) -> None:
        """Delete all there is of this agent."""
        for _, folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)

    def _told(self, entry: Entry) -> Entry:
        """A step tells what is new; a folder's first one all there is, as the viewer knows nothing of the last folder.

        Facts that an earlier process was told are not in it; texts are.
        """
        if entry["event"] != "step":
            return entry
        extra = entry.get("extra", {})
        _follow(self._texts, extra.get("written", ()))
        _follow(self._facts, ((fact["id"], None if fact.get("gone") else fact) for fact in entry["facts"]))
        if not self._bare:
            return entry
        self._bare = False
        whole = {**extra, "written": list(self._texts.items())}
        return {**entry, "facts": list(self._facts.values()), "extra": whole}

    def _growing(self) -> LineFile:
        """The file to write to."""
        if self._trace is None:
            found = [folder / TRACE for _, folder in self._folders()]
            self._trace = self._last(found[-1]) if found and found[-1].exists() else self._begun()
        if not self._trace.path.exists() or self._trace.size >= self._most:
            self._trace = self._begun()
        return self._trace

    def _last(self, trace: Path) -> LineFile:
        """The trace that an earlier process wrote, or a new one where its end is damaged."""
        try:
            return LineFile.at_end(trace, opening(trace.parent))
        except DataError as error:
            log.warning("the trace of agent %r begins anew: %s", self._agent, error)
            return self._begun()

    def _begun(self) -> LineFile:
        """The trace of a new folder."""
        folders = self._folders()
        number = folders[-1][0] if folders else 0
        made = self._root / f"{self._stem}.{number + 1}"
        made.mkdir(parents=True, exist_ok=True)
        config, start = bound(self._config)
        write_sealed(made / CONFIG, config)
        trace = LineFile(made / TRACE, None, start)
        trace.append([agent_entry(self._agent)], synced=False)
        for _, old in folders[: len(folders) + 1 - KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        self._bare = True
        return trace

    def _folders(self) -> list[tuple[int, Path]]:
        found = ((path.name.removeprefix(f"{self._stem}."), path) for path in self._root.glob(f"{self._stem}.*"))
        return sorted((int(number), path) for number, path in found if number.isdecimal())


def quietly(record: Callable[[Entry], None] | None) -> Callable[[Entry], None]:
    """``record``, but what it raises is logged: what happened has happened, whether it is written down or not."""

    def tell(entry: Entry) -> None:
        try:
            if record is not None:
                record(entry)
        except Exception:
            log.exception("a %s could not be recorded", entry["event"])

    return tell


def _follow(known: dict[str, T], news: Iterable[tuple[str, T | None]]) -> None:
    for id, value in news:
        known.pop(id, None)
        if value is not None:
            known[id] = value
