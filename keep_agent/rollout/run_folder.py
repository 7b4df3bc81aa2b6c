"""Run folder: config, one committed line per episode, the trace, and the summary written last.

All files belong to the config: their chains of checksums begin with it, and it names the run, so those of another run
are refused. A mark beside ``episodes.jsonl`` tells how many lines there are, the summary which was the last.

The line in ``episodes.jsonl`` is the commit mark of an episode: pictures and trace are written and synced before it,
and it says how many lines the trace has by then. Opening an interrupted run drops whatever has no mark. So a run may be
killed at any moment and resumed. Every file has checksums; what was committed and has changed since is refused.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Protocol, Self

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import unpacking
from keep_agent.rollout.frames import Frames, keep_frames
from keep_agent.rollout.results import EpisodeResult, typed
from memory.files.atomic import SUFFIX, clean, taken
from memory.files.end_mark import Mark, MarkedFile, end_of, find_mark, read_marked, read_marks
from memory.files.json_lines import Chain, Line, LineFile, encoded, read_lines
from memory.files.sealed_json import read_sealed, write_sealed

CONFIG, EPISODES, TRACE, SUMMARY = "config.json", "episodes.jsonl", "trace.jsonl", "summary.json"
TRACED = "trace"  # of a committed line: lines of the trace by then
COMMITTED, LAST = "committed", "last"  # of a summary: committed lines, and the checksum of the last
RUN = "run"  # of a saved config: tells a run from others of the same settings; older versions have none
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
    """Results of one run on disk. Make it with `create` or `resume`; nobody else can go on with it until `release`.

    A context manager: at its end, however it ends, the folder is released.
    """

    lines: ClassVar[str] = EPISODES  # the file with one committed line per result
    result: ClassVar[type[Result]] = EpisodeResult

    def __init__(self, path: Path, config: Mapping[str, Any], results: Iterable[Any] = ()) -> None:
        self.path = path
        self.config = config
        self.results = list(results)
        self._lines, self._trace = LineFile(path / self.lines), LineFile(path / TRACE)

    def _go_on(self, start: Chain, line: Line | None = None, traced: Line | None = None) -> None:
        """Append behind these lines from now on; None: at the front."""
        kind = MarkedFile if start.sealed else LineFile
        self._lines = kind(self.path / self.lines, line, start)
        self._trace = LineFile(self.path / TRACE, traced, start)

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
            named, start = bound(config)
            MarkedFile.begin(candidate / cls.lines, start)  # first: a run with a config has a mark
            write_sealed(candidate / CONFIG, named)
            run = cls(candidate, config)._claimed()
            run._go_on(start)
            return run
        raise ConfigError(f"{path} and its numbered neighbours all hold runs; choose another eval.out")

    @classmethod
    def resume(cls, path: Path) -> Self:
        """An existing run with its finished episodes; a torn or unmarked tail is cut off, and reported."""
        run = cls(path, cls.saved(path))._claimed()
        try:
            run._read_back()
        except BaseException:
            run.release()
            raise
        return run

    def _read_back(self) -> None:
        """What is committed; what is not is cut off."""
        clean(self.path)  # of what a killed run was about to write
        start, lines = opening(self.path), self._committed(self.path)
        if lines and not lines[-1].chain.sealed:
            log.warning("%s was made by a version without checksums: damage to it is not noticed", self.path)
        self.results = _results(lines, self.path / self.lines, self.result)
        ids = {result.id for result in self.results}
        self._go_on(start, lines[-1] if lines else None, _last_committed(self.path / TRACE, start, lines, ids))
        for file in (self._lines, self._trace):
            if over := file.cut():
                log.warning("%s: %d bytes without a commit mark are cut off", file.path, over)
        keep_frames(self.path, ids)

    def _claimed(self) -> Self:
        """Its folder is held until `release`, or the process is gone. Raises ConfigError if another holds it."""
        folder = os.open(self.path, os.O_RDONLY)
        self._release = weakref.finalize(self, os.close, folder)
        if taken(folder):
            self.release()
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
        """The committed lines. Raises CorruptError if one is damaged, missing or another run's, or the summary is."""
        lines = read_committed(path, cls.lines)
        if (path / SUMMARY).exists():
            _check_summary(path, lines, opening(path))
        return lines

    @property
    def finished(self) -> frozenset[int]:
        """Indices of the committed episodes."""
        return frozenset(result.index for result in self.results)

    def check_weights(self, weights: str | None, trained: str | None = None) -> None:
        """Raises ConfigError unless it was these (hashes) that gave the results so far.

        :param trained: of what was trained besides the model
        """
        if self.config.get("weights", weights) != weights:
            raise ConfigError(f"{self.path} was made by a model with other weights; start a new run")
        if self.config.get("trained", trained) != trained:
            raise ConfigError(f"{self.path} was made with another retention head; start a new run")

    def commit(self, result: Result, entries: Iterable[Mapping[str, Any]] = (), frames: Frames | None = None) -> None:
        """Write a result for good: first its pictures, then its trace, then its line."""
        if frames is not None:
            frames.write(self.path)
        self._trace.append(entries)
        mark = {TRACED: self._trace.count} if self._trace.count else {}
        self._lines.append([result.to_json() | mark])
        self.results.append(result)

    def release(self) -> None:
        """Let others go on with it now, not when the last reference is gone: a traceback may hold one for long."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def discard(self) -> None:
        """Take back a run that could not begin."""
        (self.path / CONFIG).unlink()
        end_of(self.path / self.lines).unlink(missing_ok=True)
        self.release()

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        path = self.path / SUMMARY
        last = {LAST: _shown(self._lines.link)} if self._lines.start.sealed else {}
        write_sealed(path, {**summary, COMMITTED: self._lines.count} | last)
        return path


def read_config(path: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """A run's config. Raises DataError when ``path`` is not a run folder, or a dotted key that is ``needed`` lacks."""
    config = _saved_config(path)
    config.pop(RUN, None)
    for key in needed:
        _check_has(config, key, path / CONFIG)
    return config


def _check_has(config: Any, key: str, file: Path) -> None:
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            raise DataError(f"{file}: there is no {key}; {AGAIN}")
        config = config[part]


def bound(config: Mapping[str, Any]) -> tuple[dict[str, Any], Chain]:
    """A config as it is saved, with a name of the run's own, and what the chains of the run's files begin with."""
    named = {**config, RUN: token_hex(8)}
    return named, Chain.bound(encoded(named))


def opening(path: Path) -> Chain:
    """What the chains of a run's files begin with; nothing where an older version made it, or there is no config."""
    config = _saved_config(path) if (path / CONFIG).exists() else {}
    return Chain.bound(encoded(config)) if RUN in config else Chain()


def _saved_config(path: Path) -> dict[str, Any]:
    lost = "give a run folder that eval printed; a run whose config is lost cannot be used"
    return read_sealed(path / CONFIG, lost, key=RUN)


def read_summary(path: Path) -> dict[str, Any]:
    """A finished run's summary. Raises DataError."""
    return read_sealed(path / SUMMARY, _write_again(path), key=LAST)


def find_runs(path: Path) -> list[Path]:
    """Run folders at or below ``path``, sorted by name; none that a killed writer left half-written.

    Raises DataError when there are none.
    """
    found = sorted(
        file.parent
        for file in path.rglob(CONFIG)
        if _has_results(file.parent) and not file.parent.name.endswith(SUFFIX)
    )
    if not found:
        raise DataError(f"no run under {path}: give a folder that holds {CONFIG} and {EPISODES}")
    return found


def read_committed(path: Path, name: str) -> list[Line]:
    """The committed lines of a run's file. Raises CorruptError if one is damaged, missing or another run's."""
    start = opening(path)
    if start.sealed:
        return read_marked(path / name, start, f"{CONFIG} beside it", AGAIN)
    return list(read_lines(path / name, AGAIN))


def trace_lines(trace: Path) -> Iterator[Line]:
    """The lines of a run's trace. Raises CorruptError if one is damaged, missing or another run's."""
    path, number = trace.parent, 0
    lines = read_committed(path, EPISODES) if _commits(path) else []
    for line in read_lines(trace, AGAIN, opening(path)):
        number = line.number
        yield line
    check_trace(path, number, _committed_trace(lines) or 0)


def episodes_mark(path: Path) -> Mark | None:
    """How many episodes of a run there must be; None where nothing tells. Raises CorruptError for a damaged mark."""
    start = opening(path)
    if not start.sealed or not _commits(path):
        return None
    return find_mark(path / EPISODES, start, f"{CONFIG} beside it", AGAIN)


def _commits(path: Path) -> bool:
    """Whether a folder is that of a run with episodes; an agent's trace on a server has none."""
    return any(file.exists() for file in (path / EPISODES, end_of(path / EPISODES)))


def _has_results(path: Path) -> bool:
    return (path / EPISODES).exists() or any(mark.count for mark in read_marks(path / EPISODES))


def _committed_trace(lines: Iterable[Line]) -> int | None:
    """Lines of its trace that a run's committed lines tell of; None where none tells."""
    return max((line.value[TRACED] for line in lines if TRACED in line.value), default=None)


def check_trace(path: Path, lines: int, committed: int) -> None:
    """Raises CorruptError if the trace of a run has fewer lines than were committed."""
    if lines < committed:
        raise CorruptError(f"{path / TRACE} has {lines} whole lines of the {committed} that were committed; {AGAIN}")


def _check_summary(path: Path, lines: Sequence[Line], start: Chain) -> None:
    """Raises CorruptError if a summary was written of more lines than there are, or of another run's."""
    summary = read_summary(path)
    told = summary.get(COMMITTED)
    if told is not None and (type(told) is not int or not 0 <= told <= len(lines)):
        raise CorruptError(
            f"{path} has {len(lines)} results of the {told} that {SUMMARY} was written of; restore the file, or delete "
            f"{SUMMARY} and resume the run"
        )
    if start.sealed and summary.get(LAST) != _shown(lines[told - 1].chain.sum if told else start.sum):
        raise CorruptError(f"{path / SUMMARY} belongs to another run, or another state of it; {_write_again(path)}")


def _write_again(path: Path) -> str:
    return f"delete it and write it again with eval.resume={path}"


def _shown(link: int) -> str:
    return f"{link:08x}"


def _results(lines: Iterable[Line], path: Path, kind: type[Result]) -> list[Any]:
    """What the lines of a file hold."""
    results = []
    for line in lines:
        row = {key: value for key, value in line.value.items() if key != TRACED}
        with unpacking(f"{path}:{line.number}", f"no {kind.__name__}", AGAIN):
            results.append(typed(kind.from_json(row)))
    return results


def _last_committed(path: Path, start: Chain, committed: Iterable[Line], ids: set[str]) -> Line | None:
    """The last line of a trace that was committed. Raises CorruptError for a line up to there that is damaged."""
    told = _committed_trace(committed)
    if told is None and not start.sealed:  # an older version did not count
        kept = (line for line in read_lines(path, AGAIN) if line.value.get("episode") in ids)
    else:
        kept = islice(read_lines(path, AGAIN, start), told or 0)  # what stands behind may be anything
    last = next(iter(deque(kept, maxlen=1)), None)
    check_trace(path.parent, last.number if last else 0, told or 0)
    return last
