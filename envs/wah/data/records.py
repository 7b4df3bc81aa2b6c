"""Records of tasks in JSON files, gzipped or not: reading and validation, with errors that name file and record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.wah.apartments.placing import Goal
from envs.wah.goals import Predicate, parse_goal
from envs.wah.scene import TASK_TYPES
from keep_agent import files
from keep_agent.errors import DataError

ENDINGS = (".json", ".json.gz")
_REMEDY = "restore it from its source"


def read_json(path: Path) -> Any:
    """Read a file. Raises DataError that names the file."""
    return files.read_json(path, _REMEDY)


def json_files(folder: Path, containing: str = "") -> list[Path]:
    """Return the JSON files of a folder whose names contain ``containing``, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and containing in path.name)


def records_of(path: Path) -> list[tuple[Mapping[str, Any], str]]:
    """Return the records of a file, each with its location for messages. Raises DataError for another format."""
    content = read_json(path)
    rows = content if isinstance(content, list) else [content]
    if not all(isinstance(row, Mapping) for row in rows):
        raise DataError(f"{path} is not a list of tasks; give records as in LoTA-Bench's wah_nl_test.json")
    return [(row, f"{path}: record {number}") for number, row in enumerate(rows)]


def field_of(row: Mapping[str, Any], names: Iterable[str], where: str) -> Any:
    """Return the value of the first field in ``names`` that a record has. Raises DataError if it has none of them."""
    names = tuple(names)
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"{where} has no {' or '.join(repr(name) for name in names)}; it is not a task of Watch-And-Help")


def task_of(row: Mapping[str, Any], where: str) -> tuple[str, Goal]:
    """Return type and goal of a record. Raises DataError that names ``where``, its location."""
    kind = str(field_of(row, ("task_name",), where))
    counts = field_of(row, ("task_goal", "goal", "derived_goal"), where)
    if kind not in TASK_TYPES:
        raise DataError(f"{where} has the type {kind!r}; use one of {', '.join(TASK_TYPES)}")
    if not isinstance(counts, Mapping):
        raise DataError(f"{where} has the goal {counts!r}; give predicates with their counts")
    goal = tuple((str(text), count) for text, count in counts.items() if count != 0)
    check_goal(goal, where, lambda predicates: None)
    return kind, goal


def check_goal(goal: Goal, where: str, check: Callable[[Sequence[Predicate]], None]) -> None:
    """Parse a goal and ``check`` it. Raises DataError that names ``where`` if parsing or ``check`` fails."""
    try:
        check(parse_goal(goal))
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def number_of(row: Mapping[str, Any], name: str, where: str) -> int | None:
    """Return a whole number of a record, None if the field is absent. Raises DataError for any other value."""
    value = row.get(name)
    if value is not None and type(value) is not int:
        raise DataError(f"{where} has {name}={value!r:.80}; give a whole number")
    return value


def instructions_of(row: Mapping[str, Any], where: str) -> list[str]:
    """Return the instructions of a record, if any. Raises DataError for anything but a list of texts."""
    instructions = row.get("nl_instructions") or []
    if not isinstance(instructions, list) or not all(isinstance(text, str) and text.strip() for text in instructions):
        raise DataError(f"{where} has nl_instructions={instructions!r:.80}; give a list of texts")
    return instructions
