"""Four tasks of RULER (arXiv 2404.06654), written from its description: made-up texts with a question.

They are the four that SparseX reports (its section 5.2): mq_niah, vt, cwe and fwe. The needles, chains or words are
spread over all documents, so that no document answers alone. RULER asks for everything it hides; here mq_niah hides
more keys than it asks for and vt has a second chain, so that a model has to find what it is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from keep_agent.errors import ConfigError

NOISE = (
    "The river bends twice before it meets the old mill.",
    "A cart stood by the gate until the evening.",
    "Rain fell on the hills, and the path was soft.",
    "Someone had left a lamp burning in the hall.",
    "The baker counts the loaves and opens the door.",
    "Birds came back to the roof as they do each spring.",
    "There was not much to see from the far side of the bridge.",
)  # fmt: skip
CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3


class Words:
    """Fresh made-up words. All are of one length, so that none is part of another."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._drawn = rng, set[str]()

    def draw(self) -> str:
        word = "".join(self._rng.choice(CONSONANTS) + self._rng.choice(VOWELS) for _ in range(SYLLABLES))
        if word in self._drawn:
            return self.draw()
        self._drawn.add(word)
        return word


@dataclass(frozen=True, slots=True)
class Written:
    """What a task made up: the pieces of all documents in prompt order, and a question about them."""

    pieces: Sequence[str]
    question: str
    answers: tuple[str, ...]


class Task(Protocol):
    about: ClassVar[str]  # what the documents are, as a cue before them begins
    reminder: ClassVar[str]  # stands for the question behind the documents if it was put before them
    lead: ClassVar[str]  # the first words of the answer

    def write(self, count: int, documents: int, rng: random.Random) -> Written:
        """``count`` pieces. Raises `ConfigError` if the task needs more."""
        ...


@dataclass(frozen=True)
class MultiQuery:
    """mq_niah: sentences that give a key its magic number, as many in each document; the numbers of several keys.

    They are at least ``hidden``, and as many more as it takes to give every document the same number.
    """

    hidden: int = 8
    asked: int = 4
    about: ClassVar[str] = "Magic numbers are hidden in the documents below."
    reminder: ClassVar[str] = "Give the magic numbers of all the keys that were asked for."
    lead: ClassVar[str] = "The magic numbers are"

    def write(self, count: int, documents: int, rng: random.Random) -> Written:
        words = Words(rng)
        numbers = rng.sample(range(10**6, 10**7), documents * math.ceil(self.hidden / documents))
        held = {words.draw(): str(number) for number in numbers}
        asked = rng.sample(list(held), self.asked)
        needles = [f"The magic number of {key} is {number}." for key, number in held.items()]
        question = f"What are the magic numbers of {_listed(asked)} in the documents?"
        return Written(hide(needles, count, rng), question, tuple(held[key] for key in asked))


@dataclass(frozen=True)
class VariableTracking:
    """vt: a variable is given a value, the next that variable, and so on; all variables that hold the value."""

    chains: int = 2
    hops: int = 4
    about: ClassVar[str] = "Assignments of variables are hidden in the documents below; follow them."
    reminder: ClassVar[str] = "Name all the variables that hold the value that was asked for."
    lead: ClassVar[str] = "The variables are"

    def write(self, count: int, documents: int, rng: random.Random) -> Written:
        words = Words(rng)
        values = rng.sample(range(10_000, 100_000), self.chains)
        chains = {value: [words.draw().upper() for _ in range(self.hops + 1)] for value in values}
        needles = [
            f"VAR {chain[hop]} = {f'VAR {chain[hop - 1]}' if hop else value}."
            for hop in range(self.hops + 1)
            for value, chain in chains.items()
        ]
        value = rng.choice(values)
        question = f"Which variables in the documents hold the value {value}, directly or through other variables?"
        return Written(hide(needles, count, rng), question, tuple(chains[value]))


@dataclass(frozen=True)
class CommonWords:
    """cwe: a shuffled list in which some words stand often and the others rarely; the common ones."""

    asked: int = 10
    often: int = 30
    rarely: int = 3
    about: ClassVar[str] = "The documents below are parts of one list of words; some words appear often in it."
    reminder: ClassVar[str] = "Name the most common words of the list, as was asked."
    lead: ClassVar[str] = "The most common words are"

    def write(self, count: int, documents: int, rng: random.Random) -> Written:
        rest = count - self.asked * self.often
        _need(rest >= self.rarely, f"cwe needs more than {self.asked * self.often} words", count)
        words = Words(rng)
        common = [words.draw() for _ in range(self.asked)]
        others = [words.draw() for _ in range(math.ceil(rest / self.rarely))]
        pieces = common * self.often + (others * self.rarely)[:rest]
        rng.shuffle(pieces)
        size = count // documents
        numbered = [f"{place % size + 1}. {word}" for place, word in enumerate(pieces)]
        question = f"What are the {self.asked} most common words of the list over all documents?"
        return Written(numbered, question, tuple(common))


@dataclass(frozen=True)
class FrequentWords:
    """fwe: coded words, the k-th of which stands in proportion to k to the power of -``exponent``; the first ones."""

    asked: int = 3
    exponent: float = 2.0
    about: ClassVar[str] = "The documents below are one coded text; mind how often each coded word appears in it."
    reminder: ClassVar[str] = "Name the most frequent coded words, as was asked."
    lead: ClassVar[str] = "The most frequent words are"

    def write(self, count: int, documents: int, rng: random.Random) -> Written:
        times = self.counts(count)
        clear = len(times) > self.asked and times[self.asked - 1] > times[self.asked]
        _need(clear, f"fwe needs words for {self.asked} to be clearly the most frequent", count)
        words = Words(rng)
        ranked = [words.draw() for _ in times]
        pieces = [word for word, often in zip(ranked, times, strict=True) for _ in range(often)]
        rng.shuffle(pieces)
        question = f"What are the {self.asked} most frequent coded words over all documents?"
        return Written(pieces, question, tuple(ranked[: self.asked]))

    def counts(self, total: int) -> list[int]:
        """How often each rank's word stands in ``total`` words: zeta-distributed, the tail made of single words."""
        shares = [rank**-self.exponent for rank in range(1, total + 1)]
        whole = sum(shares)
        times = [often for share in shares if (often := math.floor(total * share / whole))]
        return times + [1] * (total - sum(times))


def hide(needles: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """``count`` sentences of noise with each needle at a place of its own in as many equal stretches, in order."""
    _need(count >= len(needles), f"{len(needles)} needles need a sentence each", count)
    pieces = [NOISE[place % len(NOISE)] for place in range(count)]
    for number, needle in enumerate(needles):
        first, end = (count * edge // len(needles) for edge in (number, number + 1))
        pieces[rng.randrange(first, end)] = needle
    return pieces


def _need(given: bool, what: str, count: int) -> None:
    if not given:
        raise ConfigError(f"{what}, the documents have room for {count}; use a larger --segment-tokens or --segments")


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


TASKS: dict[str, Task] = {
    "mq_niah": MultiQuery(), "vt": VariableTracking(), "cwe": CommonWords(), "fwe": FrequentWords(),
}  # fmt: skip
