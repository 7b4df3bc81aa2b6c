"""Index of a trace: episodes, file positions of their steps, and the segments and facts known at each step.

The index grows with the file; indexing reads each byte once.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError
from keep_agent.files import reading, unpacking
from keep_agent.rollout.run_folder import EPISODES, RESTORE, TRACE_COUNT, chain_start, check_trace, episodes_mark
from keep_agent.rollout.trace import Entry, check_schema
from keep_agent.viewer.history import History
from memory.files.json_lines import Chain

REMEDY = "restore the file, or run it again"


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Position of a line: offset and size in bytes without line break, number from 1, hash chain before the line."""

    start: int
    size: int
    number: int
    before: Chain


@dataclass
class GrowingFile:
    """Growing file of JSON lines. A last line without a line break is incomplete; a later read returns it."""

    path: Path
    count: int = 0  # number of complete lines read
    _end: int = 0  # position after the last complete line
    _chain: Chain = field(default_factory=Chain)
    _file: tuple[int, int] = (0, 0)  # device and inode of the file

    def replaced(self) -> bool:
        """Return whether the file was replaced or truncated, so that the lines read before are invalid."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return self._end > 0
        return self._end > 0 and ((status.st_dev, status.st_ino) != self._file or status.st_size < self._end)

    def forget(self, start: Chain | None = None) -> None:
        """Let the next read begin at the first line again. ``start``: start of the file's hash chain."""
        self.count, self._end, self._chain = 0, 0, replace(start or Chain())

    def new_lines(self) -> Iterator[tuple[LinePosition, dict[str, Any]]]:
        """Yield new complete lines; none for a missing file. Raises DataError for a damaged line."""
        if not self.path.exists():
            return
        with reading(self.path), self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            self._file = (status.st_dev, status.st_ino)
            stream.seek(self._end)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                position = LinePosition(self._end, len(line) - 1, self.count + 1, replace(self._chain))
                value = self._chain.open(line[:-1], f"{self.path}:{position.number}", REMEDY)
                self._end += len(line)
                self.count += 1
                yield position, value

    def line_at(self, position: LinePosition) -> dict[str, Any]:
        """Read the line at a position again. Raises DataError if it has changed."""
        with reading(self.path), self.path.open("rb") as stream:
            stream.seek(position.start)
            return replace(position.before).open(stream.read(position.size), f"{self.path}:{position.number}", REMEDY)


@dataclass(frozen=True, slots=True)
class Outline:
    """Summary of a step for the slider, the list of episodes and a comparison. None: not in the trace."""

    task: int
    step: int  # number within the task
    skill: str
    ok: bool
    goal: tuple[int, int] | None  # number of goal conditions met, and of all
    ttft_ms: float | None
    computed: float | None  # computed share of rows x layers
    cold: bool  # first prompt after a reset
    flips: int  # number of segment groups that became static or dynamic
    restarted: bool


def summarize_step(entry: Entry) -> Outline:
    """Summarize a step. Raises one of `keep_agent.files.STRUCTURE_ERRORS` for an entry that is not a step."""
    goal, active, rows = entry.get("goal"), entry.get("active_rows"), len(entry.get("token_ids", ()))
    return Outline(
        task=int(entry["task"]),
        step=int(entry["step"]),
        skill=str(entry["skill"]),
        ok=bool(entry["ok"]),
        goal=(int(goal[0]), int(goal[1])) if goal else None,
        ttft_ms=_finite(entry.get("timings", {}).get("ttft")),
        computed=_finite(round(sum(active) / (rows * len(active)), 4)) if active and rows else None,
        cold=bool(entry.get("cold", False)),
        flips=len(entry.get("flips", ())),
        restarted=bool(entry.get("restarted", False)),
    )


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value


@dataclass
class EpisodeIndex:
    """One episode of a trace. ``key`` is its id, or ``id#2`` if the trace holds it a second time."""

    key: str
    opening: Entry
    instruction: str = ""  # of the first step
    positions: list[LinePosition] = field(default_factory=list)  # of its steps' lines
    outlines: list[Outline] = field(default_factory=list)
    texts: History[str] = field(default_factory=History)  # by segment id
    facts: History[Entry] = field(default_factory=History)  # by the id of the fact's object, receptacle or agent
    task_ends: list[Entry] = field(default_factory=list)  # entries of ended tasks
    crash: Entry | None = None
    frames: dict[int, str] = field(default_factory=dict)  # step -> path of the picture after it; -1: at the reset

    @property
    def id(self) -> str:
        return self.opening["episode"]

    def add(self, position: LinePosition, entry: Entry) -> None:
        """Add the next step; an invalid step leaves the index unchanged."""
        number, summary = len(self.positions), summarize_step(entry)
        texts = [(str(id), text) for id, text in entry.get("extra", {}).get("written", ())]
        facts = [(str(fact["id"]), fact) for fact in entry.get("facts", ())]
        for id, text in texts:
            self.texts.add(number, id, text)
        for id, fact in facts:
            self.facts.add(number, id, None if fact.get("gone") else fact)
        if entry.get("frame"):
            self.frames[number] = str(entry["frame"])
        self.instruction = self.instruction or str(entry.get("instruction", ""))
        self.positions.append(position)
        self.outlines.append(summary)


class TraceIndex:
    """Index of a run's trace. Safe to use from several threads.

    Reading stops at a line that is invalid or of another schema; ``problem`` names it and the remedy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self._trace_file, self._results_file = GrowingFile(path), GrowingFile(path.with_name(EPISODES))
        self._committed = 0  # number of trace lines that episodes.jsonl records as committed
        self._episodes: dict[str, EpisodeIndex] = {}
        self._current: dict[str, EpisodeIndex] = {}  # by id: episode that gets new entries
        self._lock = threading.Lock()

    def refresh(self) -> dict[str, EpisodeIndex]:
        """Read new lines; return the episodes by key, in the order of the file."""
        with self._lock:
            if self._trace_file.replaced() or self._results_file.replaced():
                self._trace_file.forget()
                self._results_file.forget()
                self._episodes, self._current, self.problem, self._committed = {}, {}, "", 0
            if not self.problem:
                self._read()
            return dict(self._episodes)

    def episode(self, key: str) -> EpisodeIndex:
        """Return an episode by its key. Raises DataError if the trace does not contain it (yet)."""
        episode = self.refresh().get(key)
        if episode is None:
            raise DataError(f"{self.path} has no episode {key!r}: choose one from the list")
        return episode

    def entry(self, episode: EpisodeIndex, step: int) -> Entry:
        """Read the line of a step. Raises DataError for a step that does not exist."""
        if not 0 <= step < len(episode.positions):
            raise DataError(f"episode {episode.key!r} has {len(episode.positions)} steps, from 0, but no step {step}")
        position = episode.positions[step]
        return check_schema(self._trace_file.line_at(position), self.path, position.number)

    def _read(self) -> None:
        try:
            if not self._trace_file.count and not self._results_file.count:
                start = chain_start(self.path.parent)
                self._trace_file.forget(start)
                self._results_file.forget(start)
            end = episodes_mark(self.path.parent)  # the mark is read first, since a run writes it last
            for _, line in self._results_file.new_lines():
                self._committed = line.get(TRACE_COUNT, self._committed)
            if end is not None:
                end.check_count(self._results_file.count, self._results_file.path, RESTORE)
            for position, entry in self._trace_file.new_lines():
                self._add_entry(position, check_schema(entry, self.path, position.number))
            check_trace(self.path.parent, self._trace_file.count, self._committed)
        except DataError as error:
            self.problem = str(error)

    def _add_entry(self, position: LinePosition, entry: Entry) -> None:
        with unpacking(f"{self.path}:{position.number}", "not an entry of a trace", "run it again"):
            event, id = entry["event"], str(entry["episode"])
            if event == "episode" or id not in self._current:
                self._open_episode(id, _checked_opening(entry) if event == "episode" else {"episode": id})
            episode = self._current[id]
            if event == "step":
                episode.add(position, entry)
            elif event == "task":
                episode.task_ends.append(entry | {key: int(entry.get(key, 0)) for key in ("met", "total")})
            elif event == "crash":
                episode.crash = entry

    def _open_episode(self, id: str, opening: dict[str, Any]) -> None:
        key, number = id, 1
        while key in self._episodes:
            number += 1
            key = f"{id}#{number}"
        episode = EpisodeIndex(key, opening)
        if opening.get("frame"):
            episode.frames[-1] = str(opening["frame"])
        self._episodes[key] = self._current[id] = episode


def _checked_opening(entry: Entry) -> Entry:
    """Check the first entry of an episode. Raises TypeError for invalid tasks."""
    tasks = entry.get("tasks") or []
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise TypeError(f"tasks must be a list of mappings, not {tasks!r:.80}")
    return entry | {"tasks": tasks}
