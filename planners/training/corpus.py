"""Corpus of the tokenizer: texts and entity names of rollouts and lessons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from string import ascii_lowercase

from planners.prompts.styles import make_style
from planners.prompts.text import clean
from planners.training.lessons import read_lessons
from planners.training.rollout_files import Rollout, read_rollouts

PROMPT_WORDS = (
    "task lota grounded next goal failed agent at start holding nothing hand floor unseen there now gone "
    "did finished succeeded after steps where door state\n"
)
ALPHABET = ascii_lowercase + " " + " ".join(f"a{letter}" for letter in ascii_lowercase) + "\n"


def corpus(files: Iterable[Path], limit: int, lessons: Iterable[Path] = ()) -> tuple[list[str], set[str]]:
    """Return texts and entity names of up to ``limit`` rollouts and lessons of each file."""
    texts = [ALPHABET] * 4 + [PROMPT_WORDS] * 50
    for path in files:
        for rollout in islice(read_rollouts(path), limit):
            texts += rollout_texts(rollout)
    for path in lessons:
        for lesson in islice(read_lessons(path), limit):
            texts += [clean(text) for text in (lesson.text, *chain.from_iterable(lesson.steps))]
    highest: dict[str, int] = {}
    for name in {word for text in texts for word in text.split() if _is_entity(word)}:
        kind, number = name.rsplit("_", 1)
        highest[kind] = max(int(number), highest.get(kind, 0))
    # more names than occur: one without a token of its own would begin with the token of another
    return texts, {f"{kind}_{number}" for kind, most in highest.items() for number in range(1, max(10, 3 * most) + 1)}


def _is_entity(word: str) -> bool:
    kind, _, number = word.rpartition("_")
    return kind.isalpha() and number.isdecimal()


def rollout_texts(rollout: Rollout) -> Iterator[str]:
    """Yield instructions, fact lines and turns."""
    style = make_style("plain")
    for task in rollout.tasks:
        yield from (f"{text}\n" for text in task.instructions)
        yield from (edit.text for edit in style.edits(task.facts) if edit.text)
        for step in task.steps:
            yield step.turn.text
            yield from (edit.text for edit in style.edits(step.facts) if edit.text)
