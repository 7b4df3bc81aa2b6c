"""Rollout files: what `eval.dataset` writes and `planners.train` reads.

One gzipped JSON object a line is one house: facts at the start, then tasks with their steps. Facts
stay structured, so that every prompt style can be rendered from the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keep_agent.errors import DataError
from planners.prompts.text import Turn
from planners.training.json_lines import read_lines, write_lines

VERSION = 4


@dataclass(frozen=True, slots=True)
class FactRecord:
    """A fact as stored; has the fields `planners.prompts.styles.FactView` asks for."""

    id: str
    category: str
    type: str
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One executed skill. ``label`` is the expert's choice, another one where the rollout was perturbed."""

    skill: str
    label: str
    ok: bool
    message: str  # why it did not work, where the world says so
    facts: tuple[FactRecord, ...]  # changed by the skill

    @property
    def turn(self) -> Turn:
        """What a prompt tells of it."""
        return Turn(self.skill, self.ok, self.message)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    instructions: tuple[str, ...]  # several wordings of the same task
    facts: tuple[FactRecord, ...]  # changed when the task began (all of them for the first)
    steps: tuple[StepRecord, ...]
    success: bool
    goal: str = ""  # what all of the wordings ask for, as a row of steps


@dataclass(frozen=True, slots=True)
class Rollout:
    """One house: a task, or a stream of them."""

    source: str
    skills: str  # lota | grounded
    observability: str  # full | partial
    tasks: tuple[TaskRecord, ...]


def rollout_files(data: Path) -> list[Path]:
    """The rollout files of a folder, sorted; raises `DataError` when there are none."""
    if data.is_file():
        raise DataError(f"{data} is a file; name the folder that holds it")
    files = sorted(data.glob("*.jsonl.gz"))
    if not files:
        raise DataError(
            f"no *.jsonl.gz rollout files in {str(data)!r}; write some with `python -m eval.dataset --out {data}`"
        )
    return files


def _pack_fact(fact: FactRecord) -> list:
    return [*(fact.id, fact.category, fact.type, fact.place, fact.holds), fact.states, int(fact.gone), fact.sees]


def _fact(row: list) -> FactRecord:
    return FactRecord(row[0], row[1], row[2], row[3], row[4], tuple(row[5]), bool(row[6]), tuple(row[7]))


def _pack_step(step: StepRecord) -> list:
    return [step.skill, step.label, int(step.ok), step.message, [_pack_fact(fact) for fact in step.facts]]


def _step(row: list) -> StepRecord:
    return StepRecord(row[0], row[1], bool(row[2]), row[3], tuple(map(_fact, row[4])))


def _pack(rollout: Rollout) -> dict:
    tasks = [
        {
            "instructions": list(task.instructions),
            "facts": [_pack_fact(fact) for fact in task.facts],
            "steps": [_pack_step(step) for step in task.steps],
            "success": task.success,
            "goal": task.goal,
        }
        for task in rollout.tasks
    ]
    return {
        "version": VERSION,
        "source": rollout.source,
        "skills": rollout.skills,
        "observability": rollout.observability,
        "tasks": tasks,
    }


def _unpack(row: dict) -> Rollout:
    tasks = tuple(
        TaskRecord(
            tuple(task["instructions"]),
            tuple(map(_fact, task["facts"])),
            tuple(map(_step, task["steps"])),
            task["success"],
            task["goal"],
        )
        for task in row["tasks"]
    )
    return Rollout(row["source"], row["skills"], row["observability"], tasks)


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> int:
    """Write a whole file or nothing; returns the number of rollouts."""
    return write_lines(path, map(_pack, rollouts))


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """Rollouts of one file; raises `DataError` naming file and line when it is not such a file."""
    return read_lines(path, VERSION, "rollout", _unpack)
