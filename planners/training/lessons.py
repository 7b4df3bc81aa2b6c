"""Lessons: what annotators wrote, and what it means; no house, no memory. They teach words, and cost next to nothing.

``NAME.lessons.gz`` holds one JSON object a line: a task as its annotator worded it, with its goal, and that annotator's
instructions step by step, each with what it asks for. `eval.dataset` writes them, `planners.train` reads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planners.prompts.text import goal_query
from planners.training.json_lines import read_lines, write_lines
from planners.training.packing import Encode, Pack, Part, Slot, make_slot, rounded

ENDING = ".lessons.gz"
VERSION = 1
SKILLS = ("lota", "grounded")  # both learn the words
WHOLE = 0.4  # share of lessons about the task, the others are about a few of its steps
SPAN = 3  # steps at most


@dataclass(frozen=True, slots=True)
class Lesson:
    """One annotation."""

    text: str
    goal: str  # "find mug heat mug put coffeemachine"
    steps: tuple[tuple[str, str], ...]  # ("turn left and walk to the desk", "go desk")

    def drawn(self, rng: random.Random) -> tuple[str, str]:
        """(instruction, goal) of the task, or of up to `SPAN` neighbouring steps."""
        if not self.steps or rng.random() < WHOLE:
            return self.text, self.goal
        length = rng.randint(1, min(SPAN, len(self.steps)))
        first = rng.randint(0, len(self.steps) - length)
        texts, goals = zip(*self.steps[first : first + length], strict=True)
        return " ".join(texts), " ".join(goals)


def lesson_files(data: Path) -> list[Path]:
    """The files of a folder, sorted; there may be none."""
    return sorted(data.glob(f"*{ENDING}"))


def write_lessons(path: Path, lessons: Iterable[Lesson]) -> int:
    """Write a whole file or nothing; returns the number of lessons."""
    return write_lines(path, ({"version": VERSION, **asdict(lesson)} for lesson in lessons))


def read_lessons(path: Path) -> Iterator[Lesson]:
    """Lessons of one file; raises `DataError` naming file and line when it is not such a file."""
    return read_lines(path, VERSION, "lesson", _unpack)


def _unpack(row: dict[str, Any]) -> Lesson:
    return Lesson(row["text"], row["goal"], tuple((text, goal) for text, goal in row["steps"]))


def packs(lessons: Sequence[Lesson], encode: Encode, tokens: int, rng: random.Random) -> Iterator[Pack]:
    """Packs of at most ``tokens`` padded rows, or of one slot: no memory, and slots about as long as each other."""
    slots = sorted((_slot(*lesson.drawn(rng), encode, rng) for lesson in lessons), key=lambda slot: len(slot.ids))
    first = 0
    for number, slot in enumerate(slots):
        if number > first and (number + 1 - first) * rounded(len(slot.ids)) > tokens:
            yield Pack((), tuple(slots[first:number]))
            first = number
    if first < len(slots):
        yield Pack((), tuple(slots[first:]))


def _slot(text: str, goal: str, encode: Encode, rng: random.Random) -> Slot:
    parts: list[Part] = [(goal_query(rng.choice(SKILLS), text), False), (f"{goal}\n", True)]
    return make_slot("lesson", parts, encode)


def endless_lessons(files: Sequence[Path], rng: random.Random) -> Callable[[int], list[Lesson]]:
    """Draws so many at a time, each once before any comes again."""
    every = [lesson for path in files for lesson in read_lessons(path)]
    left: list[Lesson] = []

    def draw(count: int) -> list[Lesson]:
        if len(left) < count:
            left[:0] = rng.sample(every, len(every))  # behind those that are left, which come first
        return [left.pop() for _ in range(min(count, len(left)))]

    return draw
