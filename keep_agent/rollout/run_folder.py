"""Run folder: config, one committed line per episode, the trace, and the summary, which is written last.

The lines of a file are a hash chain: each line has a checksum over all lines up to it. A chain begins with the config,
which holds a random id of the run, so that files of another run are rejected. A small file beside ``episodes.jsonl``,
the mark, holds the number of committed lines. The summary holds the checksum of the last committed line.

A line in ``episodes.jsonl`` commits its episode: pictures and trace are written and synced before the line, which
holds the number of trace lines. Resuming an interrupted run drops all uncommitted data, so that a run may be killed
at any moment and resumed. Committed content with a wrong checksum is rejected.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Protocol, Self

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import unpacking
from keep_agent.rollout.frames import Frames, keep_frames
from keep_agent.rollout.results import EpisodeResult, check_types
from memory.files.atomic import SUFFIX, lock_is_held, remove_temp
from memory.files.end_mark import Mark, MarkedFile, end_of, find_mark, read_marked, read_marks
from memory.files.json_lines import Chain, Line, LineFile, encode_json, read_lines
from memory.files.sealed_json import read_sealed, write_sealed

CONFIG, EPISODES, TRACE, SUMMARY = "config.json", "episodes.jsonl", "trace.jsonl", "summary.json"
TRACE_COUNT = "trace"  # key in a committed line: number of trace lines when it was written
LINE_COUNT, LAST_SUM = "committed", "last"  # keys in a summary: number of committed lines, checksum of the last
RUN_ID = "run"  # key in a saved config: distinguishes runs with equal settings; older runs lack it
RESTORE = "restore the file, or start a new run"
log = logging.getLogger(__name__)


class Result(Protocol):
    """One result of a run, such as the result of an episode, with an index and a JSON form."""

    index: int
    id: str

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self: ...


class RunFolder(AbstractContextManager):
    """Results of one run on disk, made by `create` or `resume`. The folder is locked until `release`."""

    lines: ClassVar[str] = EPISODES  # file with one committed line per result
    result: ClassVar[type[Result]] = EpisodeResult

    def __init__(self, path: Path, config: Mapping[str, Any], results: Iterable[Any] = ()) -> None:
        self.path, self.config, self.results = path, config, list(results)
        self._lines, self._trace = LineFile(path / self.lines), LineFile(path / TRACE)

    def _open_files(self, start: Chain, line: Line | None = None, trace_line: Line | None = None) -> None:
        """Prepare to append to both files after their last committed lines, given as ``line`` and ``trace_line``."""
        kind = MarkedFile if start.sealed else LineFile
        self._lines = kind(self.path / self.lines, line, start)
        self._trace = LineFile(self.path / TRACE, trace_line, start)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> Self:
        """Make a new folder: ``path``, or ``path-2``, ``path-3``, ... if it holds a run."""
        for number in range(1, 1000):
            candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
            candidate.mkdir(parents=True, exist_ok=True)
            if any((candidate / name).exists() for name in (cls.lines, SUMMARY)):
                continue
            try:
                (candidate / CONFIG).touch(exist_ok=False)  # only one of several concurrent runs succeeds
            except FileExistsError:
                continue
            saved, start = bind_config(config)
            MarkedFile.begin(candidate / cls.lines, start)  # before the config: every run with a config has a mark
            write_sealed(candidate / CONFIG, saved)
            run = cls(candidate, config)._lock()
            run._open_files(start)
            return run
        raise ConfigError(f"{path} and its numbered variants all contain runs; choose another eval.out")

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open an existing run with its finished episodes. Lines that were not committed are cut off with a warning."""
        run = cls(path, cls.saved(path))._lock()
        try:
            run._restore()
        except BaseException:
            run.release()
            raise
        return run

    def _restore(self) -> None:
        remove_temp(self.path)  # left by a killed run
        start, lines = chain_start(self.path), self._committed(self.path)
        if lines and not lines[-1].chain.sealed:
            log.warning("%s was made by a version without checksums: damage to it is not noticed", self.path)
        self.results = _results(lines, self.path / self.lines, self.result)
        ids = {result.id for result in self.results}
        self._open_files(start, lines[-1] if lines else None, _last_committed(self.path / TRACE, start, lines, ids))
        for file in (self._lines, self._trace):
            if over := file.cut():
                log.warning("%s: the last %d bytes were not committed and are cut off", file.path, over)
        keep_frames(self.path, ids)

    def _lock(self) -> Self:
        """Lock the folder until `release`, or the end of the process. Raises ConfigError if it is locked."""
        folder = os.open(self.path, os.O_RDONLY)
        self._release = weakref.finalize(self, os.close, folder)
        if lock_is_held(folder):
            self.release()
            raise ConfigError(f"another process is writing {self.path}; wait until it ends, or stop it")
        return self

    @classmethod
    def saved(cls, path: Path) -> dict[str, Any]:
        """Return the config of an existing run. Raises DataError if there is no run, or another command made it."""
        config = read_config(path)
        foreign = sorted(file.name for file in path.glob("*.jsonl") if file.name not in (cls.lines, TRACE))
        if foreign:
            raise DataError(f"{path} holds {foreign[0]}, so another command made it; resume it with that command")
        return config

    @classmethod
    def read(cls, path: Path) -> list[Any]:
        """Return the committed results of a run, finished or not, sorted by index. Changes no file."""
        results = _results(cls._committed(path), path / cls.lines, cls.result)
        return sorted(results, key=lambda result: result.index)

    @classmethod
    def _committed(cls, path: Path) -> list[Line]:
        """Return the committed lines. Raises CorruptError if a line or the summary is damaged or of another run."""
        lines = read_committed(path, cls.lines)
        if (path / SUMMARY).exists():
            _check_summary(path, lines, chain_start(path))
        return lines

    @property
    def finished(self) -> frozenset[int]:
        """Indices of the committed episodes."""
        return frozenset(result.index for result in self.results)

    def check_weights(self, weights: str | None, trained: str | None = None) -> None:
        """Raises ConfigError if the run was made with weights of another hash.

        :param weights: hash of the model's weights; ``trained``: hash of the weights trained for the memory method
        """
        if self.config.get("weights", weights) != weights:
            raise ConfigError(f"{self.path} was made by a model with other weights; start a new run")
        if self.config.get("trained", trained) != trained:
            raise ConfigError(f"{self.path} was made with another retention head; start a new run")

    def commit(self, result: Result, entries: Iterable[Mapping[str, Any]] = (), frames: Frames | None = None) -> None:
        """Commit a result: write its pictures, its trace, and then its line."""
        if frames is not None:
            frames.write(self.path)
        self._trace.append(entries)
        mark = {TRACE_COUNT: self._trace.count} if self._trace.count else {}
        self._lines.append([result.to_json() | mark])
        self.results.append(result)

    def release(self) -> None:
        """Unlock the folder now, even if a traceback still refers to this object."""
        self._release()

    def __exit__(self, *_: object) -> None:
        self.release()

    def discard(self) -> None:
        """Remove config and mark of a run that failed to start, and unlock the folder."""
        (self.path / CONFIG).unlink()
        end_of(self.path / self.lines).unlink(missing_ok=True)
        self.release()

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        last = {LAST_SUM: f"{self._lines.checksum:08x}"} if self._lines.start.sealed else {}
        write_sealed(self.path / SUMMARY, {**summary, LINE_COUNT: self._lines.count} | last)
        return self.path / SUMMARY


def read_config(path: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Return a run's config. Raises DataError unless ``path`` is a run folder with the ``needed`` dotted keys."""
    config = _saved_config(path)
    config.pop(RUN_ID, None)
    for key in needed:
        value = config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise DataError(f"{path / CONFIG}: there is no {key}; {RESTORE}")
            value = value[part]
    return config


def bind_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Chain]:
    """Return the config to save, with a random run id, and the start of the hash chains of the run's files."""
    saved = {**config, RUN_ID: token_hex(8)}
    return saved, Chain.for_owner(encode_json(saved))


def chain_start(path: Path) -> Chain:
    """Return the start of the hash chains of a run's files: an empty chain for an older run, or without a config."""
    config = _saved_config(path) if (path / CONFIG).exists() else {}
    return Chain.for_owner(encode_json(config)) if RUN_ID in config else Chain()


def _saved_config(path: Path) -> dict[str, Any]:
    remedy = "give a run folder that eval printed; a run whose config is lost cannot be used"
    return read_sealed(path / CONFIG, remedy, key=RUN_ID)


def read_summary(path: Path) -> dict[str, Any]:
    """Return a finished run's summary. Raises DataError if it is missing or damaged."""
    return read_sealed(path / SUMMARY, _write_again(path), key=LAST_SUM)


def find_runs(path: Path) -> list[Path]:
    """Return the run folders at or below ``path``, sorted, but no temporary ones. Raises DataError if none exists."""
    folders = [file.parent for file in path.rglob(CONFIG) if not file.parent.name.endswith(SUFFIX)]
    runs = [run for run in folders if (run / EPISODES).exists() or any(m.count for m in read_marks(run / EPISODES))]
    if not runs:
        raise DataError(f"no run under {path}: give a folder that holds {CONFIG} and {EPISODES}")
    return sorted(runs)


def read_committed(path: Path, name: str) -> list[Line]:
    """Return the committed lines of a file. Raises CorruptError if a line is damaged, missing or of another run."""
    start = chain_start(path)
    if start.sealed:
        return read_marked(path / name, start, f"{CONFIG} beside it", RESTORE)
    return list(read_lines(path / name, RESTORE))


def trace_lines(trace: Path) -> Iterator[Line]:
    """Yield the lines of a run's trace. Raises CorruptError if a line is damaged, missing or of another run."""
    path, number = trace.parent, 0
    lines = read_committed(path, EPISODES) if _has_episodes(path) else []
    for line in read_lines(trace, RESTORE, chain_start(path)):
        number = line.number
        yield line
    check_trace(path, number, _committed_trace(lines) or 0)


def episodes_mark(path: Path) -> Mark | None:
    """Return the mark of ``episodes.jsonl``, None without one. Raises CorruptError for a damaged mark."""
    start = chain_start(path)
    if not start.sealed or not _has_episodes(path):
        return None
    return find_mark(path / EPISODES, start, f"{CONFIG} beside it", RESTORE)


def _has_episodes(path: Path) -> bool:
    """Return whether a folder holds a run with episodes; the folder of a server's agent has a trace only."""
    return any(file.exists() for file in (path / EPISODES, end_of(path / EPISODES)))


def _committed_trace(lines: Iterable[Line]) -> int | None:
    """Return the largest number of trace lines that a committed line records; None if no line records a number."""
    return max((line.value[TRACE_COUNT] for line in lines if TRACE_COUNT in line.value), default=None)


def check_trace(path: Path, lines: int, committed: int) -> None:
    """Raises CorruptError if the trace of a run has fewer lines than were committed."""
    if lines < committed:
        raise CorruptError(f"{path / TRACE} has {lines} whole lines, but {committed} were committed; {RESTORE}")


def _check_summary(path: Path, lines: Sequence[Line], start: Chain) -> None:
    """Raises CorruptError if the summary counts more lines than there are, or belongs to another run."""
    summary = read_summary(path)
    count = summary.get(LINE_COUNT)
    if count is not None and (type(count) is not int or not 0 <= count <= len(lines)):
        raise CorruptError(
            f"{path} has {len(lines)} results, but {SUMMARY} counts {count}; restore the missing ones, or delete "
            f"{SUMMARY} and resume the run"
        )
    if start.sealed and summary.get(LAST_SUM) != f"{lines[count - 1].chain.sum if count else start.sum:08x}":
        raise CorruptError(f"{path / SUMMARY} does not belong to these results; {_write_again(path)}")


def _write_again(path: Path) -> str:
    return f"delete it and write it again with eval.resume={path}"


def _results(lines: Iterable[Line], path: Path, kind: type[Result]) -> list[Any]:
    results = []
    for line in lines:
        row = {key: value for key, value in line.value.items() if key != TRACE_COUNT}
        with unpacking(f"{path}:{line.number}", f"not a valid {kind.__name__}", RESTORE):
            results.append(check_types(kind.from_json(row)))
    return results


def _last_committed(path: Path, start: Chain, committed: Iterable[Line], ids: set[str]) -> Line | None:
    """Return the last committed line of a trace. Raises CorruptError if a committed line is damaged."""
    count = _committed_trace(committed)
    if count is None and not start.sealed:  # older versions did not count the lines of the trace
        lines = (line for line in read_lines(path, RESTORE) if line.value.get("episode") in ids)
    else:
        lines = islice(read_lines(path, RESTORE, start), count or 0)  # uncommitted lines, perhaps damaged, stay unread
    last = next(iter(deque(lines, maxlen=1)), None)
    check_trace(path.parent, last.number if last else 0, count or 0)
    return last
