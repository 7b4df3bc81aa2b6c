"""Trace recorder of a running agent: appends trace entries to the newest of its run folders, for the viewer."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from keep_agent.errors import DataError, KeepError
from keep_agent.rollout.run_folder import CONFIG, TRACE, bind_config, chain_start
from keep_agent.rollout.trace import Entry, agent_entry
from memory.files.json_lines import LineFile
from memory.files.sealed_json import write_sealed

MAX_BYTES = 64 << 20  # bytes of a trace file at which a new folder begins
MAX_FOLDERS = 2  # number of an agent's folders that are kept: the newest ones
T = TypeVar("T")
log = logging.getLogger(__name__)


class TraceRecorder:
    """Writer of trace entries in folders ``root/STEM.1``, ``.2``, ... If an entry cannot be written, the trace ends."""

    def __init__(self, root: Path, stem: str, agent: str, config: Mapping[str, Any], most: int = MAX_BYTES) -> None:
        self._root, self._stem, self._agent, self._config, self._most = root, stem, agent, config, most
        self._failed = False
        self._trace: LineFile | None = None  # the newest trace file
        self._texts: dict[str, str] = {}  # segments' texts by id
        self._facts: dict[str, Entry] = {}  # latest facts by id
        self._is_new_folder = False  # whether the newest folder has no step yet

    def __call__(self, entry: Entry) -> None:
        if self._failed or entry["event"] == "episode":  # `_new_folder` writes the episode entry
            return
        try:
            trace = self._open_trace()
            trace.append([self._with_known_state(entry)], synced=False)
        except (KeepError, OSError) as error:
            log.warning("the trace of agent %r ends: %s", self._agent, error)
            self._failed = True

    def remove(self) -> None:
        for _, folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)

    def _with_known_state(self, entry: Entry) -> Entry:
        """Put all known texts and facts into a folder's first step, since an entry holds only changes."""
        if entry["event"] != "step":
            return entry
        extra = entry.get("extra", {})
        _update_known(self._texts, extra.get("written", ()))
        _update_known(self._facts, ((fact["id"], None if fact.get("gone") else fact) for fact in entry["facts"]))
        if not self._is_new_folder:
            return entry
        self._is_new_folder = False
        full_extra = {**extra, "written": list(self._texts.items())}
        return {**entry, "facts": list(self._facts.values()), "extra": full_extra}

    def _open_trace(self) -> LineFile:
        traces = [folder / TRACE for _, folder in self._folders()] if self._trace is None else []
        if traces and traces[-1].exists():
            try:
                self._trace = LineFile.at_end(traces[-1], chain_start(traces[-1].parent))  # begun by an earlier process
            except DataError as error:
                log.warning("the trace of agent %r starts again: %s", self._agent, error)
        if self._trace is None or not self._trace.path.exists() or self._trace.size >= self._most:
            self._trace = self._new_folder()
        return self._trace

    def _new_folder(self) -> LineFile:
        folders = self._folders()
        number = folders[-1][0] if folders else 0
        path = self._root / f"{self._stem}.{number + 1}"
        path.mkdir(parents=True, exist_ok=True)
        config, start = bind_config(self._config)
        write_sealed(path / CONFIG, config)
        trace = LineFile(path / TRACE, None, start)
        trace.append([agent_entry(self._agent)], synced=False)
        for _, old in folders[: len(folders) + 1 - MAX_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)
        self._is_new_folder = True
        return trace

    def _folders(self) -> list[tuple[int, Path]]:
        numbers = ((path.name.removeprefix(f"{self._stem}."), path) for path in self._root.glob(f"{self._stem}.*"))
        return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def log_errors(record: Callable[[Entry], None] | None) -> Callable[[Entry], None]:
    """Wrap ``record`` so that errors are logged instead of raised, since the agent's call has taken effect."""

    def record_or_log(entry: Entry) -> None:
        try:
            if record is not None:
                record(entry)
        except Exception:
            log.exception("a %s could not be recorded", entry["event"])

    return record_or_log


def _update_known(known: dict[str, T], changes: Iterable[tuple[str, T | None]]) -> None:
    for id, value in changes:
        known.pop(id, None)
        if value is not None:
            known[id] = value
