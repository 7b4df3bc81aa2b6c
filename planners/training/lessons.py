"""Lessons: annotators' instructions with goals, without a memory. They teach vocabulary at little cost.

``NAME.lessons.gz`` holds one JSON object per line: an annotated task with its goal, and the step-by-step instructions
of the same annotator, each with its goal. `eval.dataset` writes the files, `planners.train` reads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planners.prompts.text import goal_query
from planners.training.packing import Encode, PackedExample, Slot, make_slot, rounded
from planners.training.rollout_files import read_lines, write_lines

ENDING = ".lessons.gz"
VERSION = 1
SKILLS = ("lota", "grounded")  # skill sets; a drawn lesson gets one at random, since both need its words
WHOLE_TASK_SHARE = 0.4  # share of draws that return the whole task; other draws return a few of its steps
MAX_STEPS = 3  # maximum number of steps in a draw


@dataclass(frozen=True, slots=True)
class Lesson:
    """An annotated task: its instruction and goal, and the instruction and goal of each of its steps."""

    text: str
    goal: str  # such as "find mug heat mug put coffeemachine"
    steps: tuple[tuple[str, str], ...]  # such as ("turn left and walk to the desk", "go desk")

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Draw (instruction, goal) of the task, or of up to `MAX_STEPS` neighbouring steps."""
        if not self.steps or rng.random() < WHOLE_TASK_SHARE:
            return self.text, self.goal
        length = rng.randint(1, min(MAX_STEPS, len(self.steps)))
        first = rng.randint(0, len(self.steps) - length)
        texts, goals = zip(*self.steps[first : first + length], strict=True)
        return " ".join(texts), " ".join(goals)


def lesson_files(data: Path) -> list[Path]:
    """Return the lesson files of a folder, sorted; there may be none."""
    return sorted(data.glob(f"*{ENDING}"))


def write_lessons(path: Path, lessons: Iterable[Lesson]) -> int:
    """Write a file atomically; return the number of lessons."""
    return write_lines(path, ({"version": VERSION, **asdict(lesson)} for lesson in lessons))


def read_lessons(path: Path) -> Iterator[Lesson]:
    """Read the lessons of a file. Raises DataError, naming file and line, for an invalid line."""

    def unpack(row: dict[str, Any]) -> Lesson:
        return Lesson(row["text"], row["goal"], tuple((text, goal) for text, goal in row["steps"]))

    return read_lines(path, VERSION, "lesson", unpack)


def pack_lessons(lessons: Sequence[Lesson], encode: Encode, tokens: int, rng: random.Random) -> Iterator[PackedExample]:
    """Pack lessons as slots without memory, by length. A pack has up to ``tokens`` padded rows, or one longer slot."""

    def slot_of(text: str, goal: str) -> Slot:
        return make_slot("lesson", [(goal_query(rng.choice(SKILLS), text), False), (f" {goal}\n", True)], encode)

    slots = sorted((slot_of(*lesson.draw(rng)) for lesson in lessons), key=lambda slot: len(slot.ids))
    first = 0
    for number, slot in enumerate(slots):
        if number > first and (number + 1 - first) * rounded(len(slot.ids)) > tokens:
            yield PackedExample((), tuple(slots[first:number]))
            first = number
    if first < len(slots):
        yield PackedExample((), tuple(slots[first:]))


def endless_lessons(files: Sequence[Path], rng: random.Random) -> Callable[[int], list[Lesson]]:
    """Return a function that draws a number of lessons; every lesson is drawn once before any is drawn again."""
    lessons = [lesson for path in files for lesson in read_lessons(path)]
    stack: list[Lesson] = []

    def draw(count: int) -> list[Lesson]:
        if len(stack) < count:
            stack[:0] = rng.sample(lessons, len(lessons))  # below the remaining lessons, which are drawn first
        return [stack.pop() for _ in range(min(count, len(stack)))]

    return draw
