"""Index of a trace: where each step stands, and what was known by then. Grows with the file, each byte read once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError
from keep_agent.files import unpacking
from keep_agent.rollout.run_folder import AGAIN, EPISODES, TRACED, check_trace, episodes_mark, opening
from keep_agent.rollout.trace import Entry, checked
from keep_agent.viewer.growing_file import GrowingFile, Place
from keep_agent.viewer.history import History
from keep_agent.viewer.step_outline import Outline, outline


@dataclass
class EpisodeIndex:
    """One episode of a trace. ``key`` is its id, or ``id#2`` where the trace plays it a second time."""

    key: str
    opening: Entry
    asked: str = ""  # the first instruction
    places: list[Place] = field(default_factory=list)  # of its steps
    outlines: list[Outline] = field(default_factory=list)
    texts: History[str] = field(default_factory=History)  # of segments
    facts: History[Entry] = field(default_factory=History)
    ends: list[Entry] = field(default_factory=list)  # of tasks
    crash: Entry | None = None
    frames: dict[int, str] = field(default_factory=dict)  # by step, -1 at the reset

    @property
    def id(self) -> str:
        return self.opening["episode"]

    def add(self, place: Place, entry: Entry) -> None:
        """A step, in order. Nothing is kept of one that is refused."""
        number, told = len(self.places), outline(entry)
        written = [(str(id), text) for id, text in entry.get("extra", {}).get("written", ())]
        facts = [(str(fact["id"]), fact) for fact in entry.get("facts", ())]
        for id, text in written:
            self.texts.add(number, id, text)
        for id, fact in facts:
            self.facts.add(number, id, None if fact.get("gone") else fact)
        if entry.get("frame"):
            self.frames[number] = str(entry["frame"])
        self.asked = self.asked or str(entry.get("instruction", ""))
        self.places.append(place)
        self.outlines.append(told)


class TraceIndex:
    """A run's trace, step by step. Safe to use from several threads.

    A line that is not JSON, of another schema, or no entry ends what can be read: ``problem`` says which, and the
    remedy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self._file, self._marks = GrowingFile(path), GrowingFile(path.with_name(EPISODES))
        self._committed = 0  # lines of the trace that the marks tell of
        self._episodes: dict[str, EpisodeIndex] = {}
        self._current: dict[str, EpisodeIndex] = {}  # by id: the one that its entries belong to
        self._lock = threading.Lock()

    def refresh(self) -> dict[str, EpisodeIndex]:
        """Read what was appended; the episodes by key, in the order of the file."""
        with self._lock:
            if self._file.replaced() or self._marks.replaced():
                self._forget()
            if not self.problem:
                self._read()
            return dict(self._episodes)

    def episode(self, key: str) -> EpisodeIndex:
        """Raises DataError for one that the trace does not hold (yet)."""
        found = self.refresh().get(key)
        if found is None:
            raise DataError(f"{self.path} has no episode {key!r}: choose one from the list")
        return found

    def entry(self, episode: EpisodeIndex, step: int) -> Entry:
        """The line of a step, as it was written. Raises DataError for a step that is not there."""
        if not 0 <= step < len(episode.places):
            raise DataError(f"episode {episode.key!r} has {len(episode.places)} steps, none has number {step}")
        place = episode.places[step]
        return checked(self._file.at(place), self.path, place.number)

    def _forget(self) -> None:
        self._file.forget()
        self._marks.forget()
        self._episodes, self._current, self.problem, self._committed = {}, {}, "", 0

    def _read(self) -> None:
        try:
            if not self._file.count and not self._marks.count:
                start = opening(self.path.parent)
                self._file.forget(start)
                self._marks.forget(start)
            end = episodes_mark(self.path.parent)  # each before what is written before it
            for _, mark in self._marks.appended():
                self._committed = mark.get(TRACED, self._committed)
            if end is not None:
                end.check_count(self._marks.count, self._marks.path, AGAIN)
            for place, entry in self._file.appended():
                self._take(place, checked(entry, self.path, place.number))
            check_trace(self.path.parent, self._file.count, self._committed)
        except DataError as error:
            self.problem = str(error)

    def _take(self, place: Place, entry: Entry) -> None:
        with unpacking(f"{self.path}:{place.number}", "no entry of a trace", "run it again"):
            self._book(place, entry)

    def _book(self, place: Place, entry: Entry) -> None:
        event, id = entry["event"], str(entry["episode"])
        if event == "episode" or id not in self._current:
            self._open(id, _opening(entry) if event == "episode" else {"episode": id})
        episode = self._current[id]
        if event == "step":
            episode.add(place, entry)
        elif event == "task":
            episode.ends.append(entry | {key: int(entry.get(key, 0)) for key in ("met", "total")})
        elif event == "crash":
            episode.crash = entry

    def _open(self, id: str, opening: dict[str, Any]) -> None:
        key, number = id, 1
        while key in self._episodes:
            number += 1
            key = f"{id}#{number}"
        episode = EpisodeIndex(key, opening)
        if opening.get("frame"):
            episode.frames[-1] = str(opening["frame"])
        self._episodes[key] = self._current[id] = episode


def _opening(entry: Entry) -> Entry:
    """The first entry of an episode. Raises TypeError for tasks that are none."""
    tasks = entry.get("tasks") or []
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise TypeError(f"tasks are {tasks!r:.80}")
    return entry | {"tasks": tasks}
