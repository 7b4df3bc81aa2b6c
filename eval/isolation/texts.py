"""Memories of independent lines, and questions that name one line: needles in English, and things in a house."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from envs.worlds import WORLDS
from eval.recall.ruler import magic_numbers
from keep_agent.errors import ConfigError
from planners.prompts.preamble import MOST, preamble
from planners.prompts.styles import make_style, place_of

CANDIDATES = 10  # answers among which a model chooses
EXAMPLES = MOST  # examples of lines that a memory offers
MOST_LINES = 160  # lines of a memory; generated houses have a few more
PARAGRAPH = (  # prose, about as long as eight lines, that says nothing about memories
    "The river rises in the hills behind the town and reaches the sea after forty miles. In spring it carries the snow "
    "of a whole winter, and the fields beside it stand under water for days. Farmers used to move their animals up the "
    "slope and wait. Later a wall was built, first of earth, then of stone, and the meadows turned into gardens. Old "
    "people still tell of the year when the bridge was lost. A boy had seen the first cracks and ran from door to "
    "door, so it was empty when it fell. The new bridge has three arches and a small lamp at each end. Boats pass "
    "under it slowly, loaded with timber and salt, and in the evening one can hear the bells from the other bank.\n"
)


@dataclass(frozen=True, slots=True)
class LineQuestion:
    """A question, the number of the line that it names, and candidate answers, of which the first is right."""

    text: str
    line: int
    candidates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Lines behind a context line and examples of such lines, and questions. All texts of lines end in a newline."""

    context: str
    examples: tuple[str, ...]
    lines: tuple[str, ...]
    questions: tuple[LineQuestion, ...]

    def draw(self, count: int, rng: random.Random) -> list[LineQuestion]:
        """Draw questions about different lines. Raises ConfigError if there are fewer than ``count``."""
        if count > len(self.questions):
            raise ConfigError(f"--questions {count} is too many; a memory has {len(self.questions)} questions")
        return rng.sample(self.questions, count)


def needles(count: int, rng: random.Random) -> LineMemory:
    """Make lines that give a key its magic number. The answer depends on the named line alone."""
    magic = magic_numbers(count + EXAMPLES, rng)
    texts = tuple(f"The magic number of the {key} is {number}.\n" for key, number in magic.items())
    numbers = list(magic.values())[:count]
    questions = tuple(
        LineQuestion(
            f"What is the magic number of the {key} in the text?\nThe magic number of the {key} is",
            place, _candidates(number, numbers, rng),
        )
        for place, (key, number) in enumerate(islice(magic.items(), count))
    )  # fmt: skip
    context = "Some magic numbers are hidden in the text below. Memorize them.\n"
    return LineMemory(context, texts[count:], texts[:count], questions)


def house(count: int, rng: random.Random) -> LineMemory:
    """Make sentences about the things and places of generated houses, and a planner's questions for places."""
    style, texts, answers = make_style("natural"), {}, {}
    episodes = WORLDS["alfred"].spec.episodes(None, "valid", seed=rng.randrange(10**5))
    setting = WORLDS["alfred"].spec.setting("grounded", "full")
    for episode in episodes:
        known = setting.knowledge(setting.begin(episode)).update()
        facts = [fact for fact in known if fact.category != "agent" and fact.id not in texts]
        for fact, edit in zip(facts, style.edits(facts), strict=True):
            texts[fact.id] = edit.text
            if fact.category == "object":
                answers[fact.id] = str(place_of(fact))
        if len(texts) >= count and len(set(answers.values())) >= CANDIDATES:
            break
    ids = rng.sample(list(texts), count)
    places = [answers.get(id, id) for id in ids]  # of the memory's things, and the memory's places
    questions = tuple(
        LineQuestion(f"where {id}", number, _candidates(answers[id], places, rng))
        for number, id in enumerate(ids) if id in answers
    )  # fmt: skip
    examples = tuple(preamble(style.name, EXAMPLES).splitlines(keepends=True))
    return LineMemory("", examples, tuple(texts[id] for id in ids), questions)


TEXTS: Mapping[str, Callable[[int, random.Random], LineMemory]] = MappingProxyType({"needles": needles, "house": house})


def _candidates(right: str, answers: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    wrong = sorted({answer for answer in answers if answer != right})
    if len(wrong) < CANDIDATES - 1:
        raise ConfigError(f"{len(wrong) + 1} different answers are too few; use more --lines")
    return right, *rng.sample(wrong, CANDIDATES - 1)
