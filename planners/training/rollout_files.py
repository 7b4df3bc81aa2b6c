"""Rollout files: written by `eval.dataset`, read by `planners.train`.

Each line of a gzipped file is a JSON object for one house: tasks with their facts and steps. Facts are stored field by
field instead of as text, so that every prompt style can be rendered from the same file.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from keep_agent.errors import DataError
from keep_agent.files import parsed
from memory.files.atomic import remove_temp, replace_file
from planners.prompts.styles import FactRecord
from planners.prompts.text import Turn

VERSION = 4
T = TypeVar("T")
REMEDY = "write it again with eval.dataset"
BROKEN = (
    OSError, EOFError, zlib.error, ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError
)  # fmt: skip


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a file atomically; return the number of rows."""
    remove_temp(path.parent)  # deletes temporary files of a killed writer
    count = 0
    with replace_file(path) as file, gzip.open(file, "wt", compresslevel=4) as stream:
        for row in rows:
            stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            count += 1
    return count


def read_lines(path: Path, version: int, kind: str, unpack: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield each row converted by ``unpack``. Raises DataError, naming file, line and ``kind``, for an invalid row."""
    number = 1
    try:
        with gzip.open(path, "rt") as stream:
            for line in stream:
                row = parsed(line, f"{path}:{number}", REMEDY)
                if row.get("version") != version:
                    raise ValueError(f"version {row.get('version')!r}, not {version}")
                yield unpack(row)
                number += 1
        if number == 1:
            raise ValueError("it is empty")
    except BROKEN as error:
        raise DataError(f"{path}:{number} is not a {kind} ({error}); {REMEDY}") from error


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One executed skill. ``label`` is the expert's choice; in a perturbed step another skill was executed."""

    skill: str
    label: str
    ok: bool
    message: str  # reason of a failure; may be empty
    facts: tuple[FactRecord, ...]  # facts changed by the skill

    @property
    def turn(self) -> Turn:
        """The step as a turn of a prompt."""
        return Turn(self.skill, self.ok, self.message)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task of a house."""

    instructions: tuple[str, ...]  # alternative wordings of the same task
    facts: tuple[FactRecord, ...]  # facts changed at the start of the task (for the first task: all)
    steps: tuple[StepRecord, ...]
    success: bool
    goal: str = ""  # the same for all wordings, such as "find mug put desk"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One house with a task, or with a stream of tasks."""

    source: str
    skills: str  # lota | grounded
    observability: str  # full | partial
    tasks: tuple[TaskRecord, ...]


def rollout_files(data: Path) -> list[Path]:
    """Return the rollout files of a folder, sorted. Raises DataError if there are none."""
    if data.is_file():
        raise DataError(f"{data} is a file; name the folder that holds it")
    files = sorted(data.glob("*.jsonl.gz"))
    if not files:
        raise DataError(
            f"no *.jsonl.gz rollout files in {str(data)!r}; write some with `python -m eval.dataset --out {data}`"
        )
    return files


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _row(record: FactRecord | StepRecord, **changes: list) -> list:
    """Return a record's values in field order, with flags as 0 or 1."""
    return [int(value) if isinstance(value, bool) else value for value in (_fields(record) | changes).values()]


def _fact(row: list) -> FactRecord:
    return FactRecord(*row[:5], tuple(row[5]), bool(row[6]), tuple(row[7]))


def _step(row: list) -> StepRecord:
    return StepRecord(row[0], row[1], bool(row[2]), row[3], tuple(map(_fact, row[4])))


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> int:
    """Write a file atomically; return the number of rollouts."""

    def pack(task: TaskRecord) -> dict[str, Any]:
        steps = [_row(step, facts=[*map(_row, step.facts)]) for step in task.steps]
        return _fields(task) | {"facts": [*map(_row, task.facts)], "steps": steps}

    rows = ({"version": VERSION, **_fields(rollout), "tasks": [*map(pack, rollout.tasks)]} for rollout in rollouts)
    return write_lines(path, rows)


def _task(row: dict[str, Any]) -> TaskRecord:
    facts, steps = tuple(map(_fact, row["facts"])), tuple(map(_step, row["steps"]))
    return TaskRecord(tuple(row["instructions"]), facts, steps, row["success"], row["goal"])


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """Read the rollouts of a file. Raises DataError, naming file and line, for an invalid line."""

    def unpack(row: dict[str, Any]) -> Rollout:
        return Rollout(row["source"], row["skills"], row["observability"], tuple(map(_task, row["tasks"])))

    return read_lines(path, VERSION, "rollout", unpack)
