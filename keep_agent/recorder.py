"""An agent's trace on disk while it goes on: run folders that the viewer opens, the newest of them growing."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keep_agent.runfolder import CONFIG, TRACE, whole_lines
from keep_agent.trace import Entry, agent_entry
from memory.disk.atomic import write_atomic

MOST = 64 << 20  # bytes of a trace, after which the next one begins
KEPT = 2  # of an agent's folders
log = logging.getLogger(__name__)


class Recorder:
    """Takes entries. A trace is a convenience: where it cannot be written the agent goes on without.

    :param root: holds ``NAME.1``, ``NAME.2``, ...
    :param config: what the viewer shows as the run's
    """

    def __init__(self, root: Path, stem: str, agent: str, config: Mapping[str, Any], most: int = MOST) -> None:
        self._root, self._stem, self._agent, self._config, self._most = root, stem, agent, config, most
        self._failed = self._whole = False

    def __call__(self, entry: Entry) -> None:
        if self._failed or entry["event"] == "episode":  # each folder begins with one of its own
            return
        try:
            with (self._folder() / TRACE).open("a", encoding="utf-8") as stream:
                stream.write(_line(entry))
        except OSError as error:
            log.warning("the trace of agent %r ends: %s", self._agent, error)
            self._failed = True

    def remove(self) -> None:
        """Delete all there is of this agent."""
        for _, folder in self._folders():
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self) -> Path:
        """The one to write to."""
        folders = self._folders()
        number, folder = folders[-1] if folders else (0, None)
        if folder is not None and (folder / TRACE).exists():
            if not self._whole:
                whole_lines(folder / TRACE, cut=True)  # of what a killed process was about to write
                self._whole = True
            if (folder / TRACE).stat().st_size < self._most:
                return folder
        made = self._root / f"{self._stem}.{number + 1}"
        made.mkdir(parents=True, exist_ok=True)
        write_atomic(made / CONFIG, json.dumps(dict(self._config)))
        (made / TRACE).write_text(_line(agent_entry(self._agent)), encoding="utf-8")
        for _, old in folders[: len(folders) + 1 - KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return made

    def _folders(self) -> list[tuple[int, Path]]:
        found = ((path.name.removeprefix(f"{self._stem}."), path) for path in self._root.glob(f"{self._stem}.*"))
        return sorted((int(number), path) for number, path in found if number.isdecimal())


def _line(entry: Entry) -> str:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n"
