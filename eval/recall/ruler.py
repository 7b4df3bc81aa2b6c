"""Six tasks of RULER (arXiv 2404.06654), implemented from its description: synthetic texts with a question.

SparseX reports four of them (its section 5.2): mq_niah, vt, cwe and fwe, in which no single document contains the
answer. Unlike RULER, mq_niah hides more keys than the question names, and vt has a second chain.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
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
ADJECTIVES = (
    "amber", "brave", "calm", "clever", "cold", "crisp", "dark", "dusty", "early", "empty", "faint", "fancy", "gentle",
    "golden", "green", "happy", "heavy", "hollow", "honest", "humble", "icy", "jolly", "kind", "large", "late",
    "lively", "lonely", "lucky", "mellow", "modern", "narrow", "noble", "odd", "pale", "plain", "polite", "proud",
    "quiet", "rapid", "rough", "royal", "rusty", "shiny", "silent", "small", "steady", "sunny", "tall",
)  # fmt: skip
NOUNS = (
    "anchor", "apple", "basket", "blanket", "bridge", "bucket", "button", "candle", "castle", "cloud", "compass",
    "desert", "dragon", "engine", "feather", "forest", "garden", "guitar", "hammer", "honey", "island", "jacket",
    "kitten", "ladder", "lemon", "marble", "mirror", "mountain", "needle", "ocean", "orchard", "pencil", "piano",
    "pillow", "planet", "ribbon", "river", "rocket", "saddle", "silver", "stone", "table", "tiger", "tunnel", "turtle",
    "velvet", "walnut", "window",
)  # fmt: skip
CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3


class WordSource:
    """Generator of distinct artificial words of equal length, so that no word is part of another word."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._words = rng, set[str]()

    def draw(self) -> str:
        word = "".join(self._rng.choice(CONSONANTS) + self._rng.choice(VOWELS) for _ in range(SYLLABLES))
        if word in self._words:
            return self.draw()
        self._words.add(word)
        return word


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """Instance of a task: the pieces (sentences or words) of all documents in prompt order, and a question."""

    pieces: Sequence[str]
    question: str
    answers: tuple[str, ...]


class RulerTask(Protocol):
    about: ClassVar[str]  # description of the documents, for a question that precedes them
    reminder: ClassVar[str]  # replaces the question after the documents if the question comes before them
    answer_start: ClassVar[str]  # first words of the answer

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        """Write ``count`` pieces for ``documents`` documents. Raises `ConfigError` if the task needs more pieces."""


@dataclass(frozen=True)
class SingleNeedle:
    """s_niah and mk_niah: a needle (a sentence) gives a key its magic number; the question asks for one key's number.

    :param only_needles: every sentence is a needle, as in RULER's multi-key task; else one needle lies among noise
    """

    only_needles: bool = False
    about: ClassVar[str] = "Magic numbers are hidden in the documents below."
    reminder: ClassVar[str] = "Give the magic number of the key that was asked for."
    answer_start: ClassVar[str] = "The magic number is"

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        magic = magic_numbers(count if self.only_needles else 1, rng)
        key = rng.choice(list(magic))
        question = f"What is the magic number of the {key} in the documents?"
        return TaskInstance(hide_needles(_needles(magic), count, rng), question, (magic[key],))


@dataclass(frozen=True)
class MultiQuery:
    """mq_niah: each needle (a sentence) gives a key its magic number; the question asks for several keys' numbers."""

    hidden_keys: int = 8  # rounded up so that all documents have equally many keys
    queries: int = 4
    about: ClassVar[str] = "Magic numbers are hidden in the documents below."
    reminder: ClassVar[str] = "Give the magic numbers of all the keys that were asked for."
    answer_start: ClassVar[str] = "The magic numbers are"

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        magic = magic_numbers(documents * math.ceil(self.hidden_keys / documents), rng)
        keys = rng.sample(list(magic), self.queries)
        first, last = ", ".join(f"the {key}" for key in keys[:-1]), f"the {keys[-1]}"
        question = f"What are the magic numbers of {first} and {last} in the documents?"
        return TaskInstance(hide_needles(_needles(magic), count, rng), question, tuple(magic[key] for key in keys))


def magic_numbers(count: int, rng: random.Random) -> dict[str, str]:
    """Draw keys of two English words (three if there are too few pairs), and a number for each."""
    words = [ADJECTIVES, NOUNS] if count <= len(ADJECTIVES) * len(NOUNS) else [ADJECTIVES, NOUNS, NOUNS]
    keys = rng.sample(list(map(" ".join, product(*words))), count)
    return dict(zip(keys, map(str, rng.sample(range(10**6, 10**7), count)), strict=True))


def _needles(magic: Mapping[str, str]) -> list[str]:
    return [f"The magic number of the {key} is {number}." for key, number in magic.items()]


@dataclass(frozen=True)
class VariableTracking:
    """vt: chains of variable assignments; the question asks for all variables that hold a value."""

    chains: int = 2
    hops: int = 4
    about: ClassVar[str] = "Assignments of variables are hidden in the documents below; follow them."
    reminder: ClassVar[str] = "Name all the variables that hold the value that was asked for."
    answer_start: ClassVar[str] = "The variables are"

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        words = WordSource(rng)
        values = rng.sample(range(10_000, 100_000), self.chains)
        chains = {value: [words.draw().upper() for _ in range(self.hops + 1)] for value in values}
        hops = product(range(self.hops + 1), chains.items())
        needles = [f"VAR {chain[hop]} = {f'VAR {chain[hop - 1]}' if hop else value}." for hop, (value, chain) in hops]
        value = rng.choice(values)
        question = f"Which variables in the documents hold the value {value}, directly or through other variables?"
        return TaskInstance(hide_needles(needles, count, rng), question, tuple(chains[value]))


@dataclass(frozen=True)
class CommonWords:
    """cwe: a shuffled list of frequent and rare words; the question asks for the frequent ones."""

    queries: int = 10
    often: int = 30  # occurrences of each frequent word
    rarely: int = 3  # occurrences of each rare word
    about: ClassVar[str] = "The documents below are parts of one list of words; some words appear often in it."
    reminder: ClassVar[str] = "Name the most common words of the list, as was asked."
    answer_start: ClassVar[str] = "The most common words are"

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        rest = count - self.queries * self.often
        _require(rest >= self.rarely, f"cwe needs more than {self.queries * self.often} words", count)
        words = WordSource(rng)
        common = [words.draw() for _ in range(self.queries)]
        rare = [words.draw() for _ in range(math.ceil(rest / self.rarely))]
        pieces = common * self.often + (rare * self.rarely)[:rest]
        rng.shuffle(pieces)
        numbered = [f"{place % (count // documents) + 1}. {word}" for place, word in enumerate(pieces)]
        question = f"What are the {self.queries} most common words of the list over all documents?"
        return TaskInstance(numbered, question, tuple(common))


@dataclass(frozen=True)
class FrequentWords:
    """fwe: coded words of frequency proportional to rank ** -``exponent``; the question asks for the top ranks."""

    queries: int = 3
    exponent: float = 2.0
    about: ClassVar[str] = "The documents below are one coded text; mind how often each coded word appears in it."
    reminder: ClassVar[str] = "Name the most frequent coded words, as was asked."
    answer_start: ClassVar[str] = "The most frequent words are"

    def write(self, count: int, documents: int, rng: random.Random) -> TaskInstance:
        times = self.counts(count)
        clear = len(times) > self.queries and times[self.queries - 1] > times[self.queries]
        _require(clear, f"fwe needs enough words for {self.queries} of them to be clearly the most frequent", count)
        words = WordSource(rng)
        ranked = [words.draw() for _ in times]
        pieces = [word for word, often in zip(ranked, times, strict=True) for _ in range(often)]
        rng.shuffle(pieces)
        question = f"What are the {self.queries} most frequent coded words over all documents?"
        return TaskInstance(pieces, question, tuple(ranked[: self.queries]))

    def counts(self, total: int) -> list[int]:
        """Return each rank's count among ``total`` words: zeta-distributed, with a tail of words that occur once."""
        shares = [rank**-self.exponent for rank in range(1, total + 1)]
        whole = sum(shares)
        times = [often for share in shares if (often := math.floor(total * share / whole))]
        return times + [1] * (total - sum(times))


def hide_needles(needles: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return ``count`` sentences: equal stretches of noise, in each of which one of the needles replaces a sentence."""
    _require(count >= len(needles), f"{len(needles)} needles need a sentence each", count)
    pieces = [NOISE[index % len(NOISE)] for index in range(count)]
    for number, needle in enumerate(needles):
        first, end = (count * edge // len(needles) for edge in (number, number + 1))
        pieces[rng.randrange(first, end)] = needle
    return pieces


def _require(condition: bool, need: str, count: int) -> None:
    if not condition:
        raise ConfigError(f"{need}, but the documents hold {count}; use a larger --segment-tokens or --segments")


TASKS: dict[str, RulerTask] = {
    "s_niah": SingleNeedle(), "mk_niah": SingleNeedle(only_needles=True), "mq_niah": MultiQuery(),
    "vt": VariableTracking(), "cwe": CommonWords(), "fwe": FrequentWords(),
}  # fmt: skip
