"""Run folder: config, one committed line per episode, the trace, and the summary written last.

The line in ``episodes.jsonl`` is the commit mark of an episode: pictures and trace are written and synced before it,
and it says how many lines the trace has by then. Opening an interrupted run drops whatever has no mark. So a run may be
killed at any moment and resumed. Every file has checksums; what was committed and has changed since is refused.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.frames import Frames, keep_frames
from keep_agent.results import EpisodeResult
from memory.disk.atomic import SUFFIX, clean, taken
from memory.disk.lines import Line, LineFile, read_lines
from memory.disk.sealed import read_sealed, write_sealed

CONFIG, EPISODES, TRACE, SUMMARY = "config.json", "episodes.jsonl", "trace.jsonl", "summary.json"
TRACED = "trace"  # of a committed line: lines of the trace by then
COMMITTED = "committed"  # of a summary: committed lines
AGAIN = "restore the file, or start a new run"
log = logging.getLogger(__name__)


class Result(Protocol):
    """What a line of a run's results holds: numbered, and plain enough for JSON."""

    index: int
    id: str

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self: ...


class RunFolder:
    """Results of one run on disk. Make it with `create` or `resume`; nobody else can go on with it meanwhile."""

    lines: ClassVar[str] = EPISODES  # the file with one committed line per result
    result: ClassVar[type[Result]] = EpisodeResult

    def __init__(self, path: Path, config: Mapping[str, Any], results: Iterable[Any] = ()) -> None:
        self.path = path
        self.config = config
        self.results = list(results)
        self._lines, self._trace = LineFile(path / self.lines), LineFile(path / TRACE)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> Self:
        """A new folder; if ``path`` already holds a run, ``path-2``, ``path-3``, ... is taken."""
        for number in range(1, 1000):
            candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
            candidate.mkdir(parents=True, exist_ok=True)
            if any((candidate / name).exists() for name in (cls.lines, SUMMARY)):
                continue
            try:
                (candidate / CONFIG).touch(exist_ok=False)  # one of several runs that begin at once gets it
            except FileExistsError:
                continue
            write_sealed(candidate / CONFIG, config)
            return cls(candidate, config)._claimed()
        raise ConfigError(f"{path} and its numbered neighbours all hold runs; choose another eval.out")

    @classmethod
    def resume(cls, path: Path) -> Self:
        """An existing run with its finished episodes; a torn or unmarked tail is cut off, and reported."""
        run = cls(path, cls.saved(path))._claimed()
        clean(path)  # of what a killed run was about to write
        lines = cls._committed(path)
        if lines and not lines[-1].chain.sealed:
            log.warning("%s was made by a version without checksums: damage to it is not noticed", path)
        run.results = _results(lines, path / cls.lines, cls.result)
        ids = {result.id for result in run.results}
        run._lines = LineFile(path / cls.lines, lines[-1] if lines else None)
        run._trace = LineFile(path / TRACE, _last_committed(path / TRACE, lines, ids))
        for file in (run._lines, run._trace):
            if over := file.cut():
                log.warning("%s: %d bytes without a commit mark are cut off", file.path, over)
        keep_frames(path, ids)
        return run

    def _claimed(self) -> Self:
        """Its folder is held until `release`, or the process is gone. Raises ConfigError if another holds it."""
        folder = os.open(self.path, os.O_RDONLY)
        self._release = weakref.finalize(self, os.close, folder)
        if taken(folder):
            raise ConfigError(f"{self.path} is being played by another process; wait for it, or stop it")
        return self

    @classmethod
    def saved(cls, path: Path) -> dict[str, Any]:
        """The config of an existing run. Raises DataError for what is none, or holds another command's results."""
        config = read_config(path)
        others = sorted(file.name for file in path.glob("*.jsonl") if file.name not in (cls.lines, TRACE))
        if others:
            raise DataError(f"{path} holds {others[0]}, so another command made it; resume it with that one")
        return config

    @classmethod
    def read(cls, path: Path) -> list[Any]:
        """The committed results of a run, finished or not, in the order of their index. Leaves the files alone."""
        found = _results(cls._committed(path), path / cls.lines, cls.result)
        return sorted(found, key=lambda result: result.index)

    @classmethod
    def _committed(cls, path: Path) -> list[Line]:
        """The committed lines. Raises CorruptError if one is damaged, or fewer are left than the summary tells of."""
        lines = list(read_lines(path / cls.lines, AGAIN))
        told = read_summary(path).get(COMMITTED) if (path / SUMMARY).exists() else None
        if told is not None and told > len(lines):
            raise CorruptError(
                f"{path / cls.lines} has {len(lines)} whole lines of the {told} that {SUMMARY} was written of; restore "
                f"the file, or delete {SUMMARY} and resume the run"
            )
        return lines

    @property
    def finished(self) -> frozenset[int]:
        """Indices of the committed episodes."""
        return frozenset(result.index for result in self.results)

    def check_weights(self, weights: str | None) -> None:
        """Raises ConfigError unless it was these (a hash) that gave the results so far."""
        if self.config.get("weights", weights) != weights:
            raise ConfigError(f"{self.path} was made by a model with other weights; start a new run")

    def commit(self, result: Result, entries: Iterable[Mapping[str, Any]] = (), frames: Frames | None = None) -> None:
        """Write a result for good: first its pictures, then its trace, then its line."""
        if frames is not None:
            frames.write(self.path)
        self._trace.append(entries)
        mark = {TRACED: self._trace.count} if self._trace.count else {}
        self._lines.append([result.to_json() | mark])
        self.results.append(result)

    def release(self) -> None:
        """Let others go on with it."""
        self._release()

    def discard(self) -> None:
        """Take back a run that could not begin."""
        (self.path / CONFIG).unlink()
        self.release()

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        path = self.path / SUMMARY
        write_sealed(path, {**summary, COMMITTED: self._lines.count})
        return path


def read_config(path: Path) -> dict[str, Any]:
    """A run's config. Raises DataError when ``path`` is not a run folder."""
    return read_sealed(path / CONFIG, "give a run folder that eval printed; a run whose config is lost cannot be used")


def read_summary(path: Path) -> dict[str, Any]:
    """A finished run's summary. Raises DataError."""
    return read_sealed(path / SUMMARY, f"delete it and write it again with eval.resume={path}")


def find_runs(path: Path) -> list[Path]:
    """Run folders at or below ``path``, sorted by name; none that a killed writer left half-written.

    Raises DataError when there are none.
    """
    found = sorted(
        file.parent
        for file in path.rglob(CONFIG)
        if (file.parent / EPISODES).exists() and not file.parent.name.endswith(SUFFIX)
    )
    if not found:
        raise DataError(f"no run under {path}: give a folder that holds {CONFIG} and {EPISODES}")
    return found


def committed_trace(path: Path) -> int:
    """Lines of its trace that a run's committed episodes tell of; 0 where none tells."""
    last = 0
    for line in read_lines(path / EPISODES, AGAIN):
        last = line.value.get(TRACED, last)
    return last


def check_trace(path: Path, lines: int, committed: int) -> None:
    """Raises CorruptError if the trace of a run has fewer lines than were committed."""
    if lines < committed:
        raise CorruptError(f"{path / TRACE} has {lines} whole lines of the {committed} that were committed; {AGAIN}")


def _results(lines: Iterable[Line], path: Path, kind: type[Result]) -> list[Any]:
    """What the lines of a file hold."""
    results = []
    for line in lines:
        row = {key: value for key, value in line.value.items() if key != TRACED}
        try:
            results.append(kind.from_json(row))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{line.number} is no {kind.__name__} ({error}); {AGAIN}") from None
    return results


def _last_committed(path: Path, committed: Iterable[Line], ids: set[str]) -> Line | None:
    """The last line of a trace that was committed. Raises CorruptError for a line up to there that is damaged."""
    told = max((line.value[TRACED] for line in committed if TRACED in line.value), default=None)
    if told is None:  # an older version did not count
        kept = (line for line in read_lines(path, AGAIN) if line.value.get("episode") in ids)
    else:
        kept = islice(read_lines(path, AGAIN), told)  # what stands behind may be anything
    last = next(iter(deque(kept, maxlen=1)), None)
    check_trace(path.parent, last.number if last else 0, told or 0)
    return last
