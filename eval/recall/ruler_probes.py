"""RULER's tasks as probes: documents of a given size in the model's tokens, and a cue where it was asked for.

A cue before the documents says what they are and what is asked; if it stands there alone, a reminder stands behind
them. A document is a reusable segment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from eval.recall.ruler import TASKS, Written
from eval.recall.wording import TextFormat
from keep_agent.errors import ConfigError
from planners.training.recall_probes import CUES, Fact

SEGMENT_TOKENS = 4096  # SparseX's segments
PIECE = 4  # tokens of the shortest sentence or list entry, about
TOLERANCE = 0.05  # of a document's size
TRIES = 12  # to hit that size; each is much nearer than the one before
MANNERS = 48  # room in an answer for what was not asked for, in tokens


@dataclass(frozen=True, slots=True)
class RulerProbe:
    """One question about documents: a front line ("" unless the cue comes first), and the prompt's end."""

    front: str
    facts: tuple[Fact, ...]
    question: str
    answers: tuple[str, ...]

    def room(self, length: Callable[[str], int]) -> int:
        """Tokens an answer may take."""
        return 2 * length(", ".join(self.answers)) + MANNERS

    def grade(self, said: str) -> float:
        """RULER's metric: the share of the expected answers that the text holds, in whatever case."""
        said = said.lower()
        return sum(answer.lower() in said for answer in self.answers) / len(self.answers)


def check_ruler(segments: int, cue: str) -> None:
    """What can be said without a model. Raises `ConfigError` for an unknown cue, or no documents."""
    if cue not in CUES:
        raise ConfigError(f"cue {cue!r} is unknown; choose one of: {', '.join(CUES)}")
    if segments < 1:
        raise ConfigError(f"a probe of {segments} documents cannot be made; use --segments 1 or more")


@dataclass(frozen=True)
class Ruler:
    """Makes probes whose documents have about ``segment_tokens`` tokens each."""

    format: TextFormat
    segment_tokens: int = SEGMENT_TOKENS

    def make(self, kind: str, segments: int, cue: str, rng: random.Random) -> RulerProbe:
        """``kind`` is one of ``TASKS``. Raises `ConfigError` for no documents or too small ones."""
        check_ruler(segments, cue)
        task = TASKS[kind]
        written, facts = self._sized(kind, segments, rng.getrandbits(64))
        front = "" if cue == "after" else f"{task.about} {written.question}\n"
        asked = task.reminder if cue == "before" else written.question
        return RulerProbe(front, facts, f"{asked}{self.format.turn}{task.lead}", written.answers)

    def _sized(self, kind: str, segments: int, seed: int) -> tuple[Written, tuple[Fact, ...]]:
        """The same seed is written again and again until documents have the size; from above, where all has room."""
        size, tokens = max(1, self.segment_tokens // PIECE), 0.0
        for _ in range(TRIES):
            written = TASKS[kind].write(size * segments, segments, random.Random(seed))
            facts = tuple(_document(number, written.pieces[number * size :][:size]) for number in range(segments))
            tokens = sum(len(self.format.line(fact.text)) for fact in facts) / segments
            better = max(1, round(size * self.segment_tokens / tokens))
            if better == size:
                break
            size = better
        if abs(tokens - self.segment_tokens) > TOLERANCE * self.segment_tokens:
            raise ConfigError(
                f"--segment-tokens {self.segment_tokens} is too small: {kind} comes to {tokens:.0f} tokens a document; "
                "use a larger one"
            )
        return written, facts


def _document(number: int, pieces: list[str]) -> Fact:
    return Fact(f"document_{number + 1}", f"Document {number + 1}: {' '.join(pieces)}\n")
