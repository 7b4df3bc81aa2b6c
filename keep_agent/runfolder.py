"""A run's folder: config, one committed line per episode, the trace, and the summary written last.

The line in ``episodes.jsonl`` is the commit mark of an episode: pictures and trace are written and synced before it,
and opening an interrupted run drops whatever has no mark. So a run may be killed at any moment and resumed.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from keep_agent.errors import ConfigError, DataError
from keep_agent.frames import Frames, keep_frames
from keep_agent.results import EpisodeResult
from memory.disk.atomic import SUFFIX, clean, replacing, taken, write_atomic

CONFIG, EPISODES, TRACE, SUMMARY = "config.json", "episodes.jsonl", "trace.jsonl", "summary.json"


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    texts = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines]
    if not texts:
        return
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(texts)
        stream.flush()
        os.fsync(stream.fileno())


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


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
            write_atomic(candidate / CONFIG, _dump(config))
            return cls(candidate, config)._claimed()
        raise ConfigError(f"{path} and its numbered neighbours all hold runs; choose another eval.out")

    @classmethod
    def resume(cls, path: Path) -> Self:
        """An existing run with its finished episodes; a torn or unmarked tail is cut off."""
        run = cls(path, cls.saved(path))._claimed()
        clean(path)  # of what a killed run was about to write
        run.results = _results(path / cls.lines, cls.result, cut=True)
        ids = {result.id for result in run.results}
        _keep_only(path / TRACE, ids)
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
        return sorted(_results(path / cls.lines, cls.result), key=lambda result: result.index)

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
        _append(self.path / TRACE, entries)
        _append(self.path / self.lines, [result.to_json()])
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
        write_atomic(path, _dump(summary))
        return path


def read_config(path: Path) -> dict[str, Any]:
    """A run's config. Raises DataError when ``path`` is not a run folder."""
    return _read_object(path / CONFIG, path)


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


def _read_object(file: Path, run: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{run} is not a run folder with a {file.name}: give one that eval printed") from None
    except ValueError as error:
        raise DataError(f"{file} is not JSON ({error}); this run cannot be used, start a new one") from None


def whole_lines(path: Path, cut: bool = False) -> list[bytes]:
    """The lines of a file, if there is one, without the half a line that a killed writer may leave at its end.

    ``cut`` takes that off the file too, so that the next line begins where a line begins.
    """
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if cut and len(whole) < len(raw):
        os.truncate(path, len(whole))
    return whole.splitlines()


def _results(path: Path, kind: type[Result], cut: bool = False) -> list[Any]:
    """What the lines of a file hold."""
    results = []
    for number, line in enumerate(whole_lines(path, cut), 1):
        try:
            results.append(kind.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}:{number} is no {kind.__name__} ({error}); delete that line to run it again"
            ) from None
    return results


def _keep_only(path: Path, ids: set[str]) -> None:
    """Rewrite the trace without entries of episodes that have no mark, if there are any."""

    def kept(line: bytes) -> bool:
        return line.endswith(b"\n") and _episode_of(line) in ids

    if not path.exists():
        return
    with path.open("rb") as source:
        if all(map(kept, source)):
            return
        source.seek(0)
        with replacing(path) as target:
            target.writelines(filter(kept, source))


def _episode_of(line: bytes) -> str | None:
    try:
        return json.loads(line)["episode"]
    except (ValueError, KeyError, TypeError):
        return None
