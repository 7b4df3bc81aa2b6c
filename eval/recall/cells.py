"""Cells of probes and answers to them: plain data that needs no model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planners.training.recall_probes import Fact, make_probe


class Probe(Protocol):
    """Segments, a question about them, and a grading function."""

    front: str  # a complete line before the segments, or ""
    facts: tuple[Fact, ...]
    question: str  # the end of the prompt

    def room(self, length: Callable[[str], int]) -> int:
        """Return the maximum number of answer tokens; ``length`` counts the tokens of a text."""
        ...

    def grade(self, answer: str) -> float:
        """Return a score from 0 to 1."""
        ...


Make = Callable[[str, int, str, random.Random], Probe]  # kind, segments, cue


@dataclass(frozen=True, slots=True)
class Cell:
    """Probes that share a kind, a cue position and a number of segments. Its repr seeds them: do not rename fields."""

    kind: str
    cue: str
    segments: int

    def probe(self, trial: int, seed: int, make: Make = make_probe) -> Probe:
        return make(self.kind, self.segments, self.cue, random.Random(f"{seed}/{self}/{trial}"))


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of one method to one probe, with the cost of its question turn."""

    cell: Cell
    trial: int
    method: str
    right: float  # score from 0 to 1
    memory_tokens: int
    prefill_tokens: float  # rows computed in the question turn, averaged over the layers
    computed_ratio: float
    recomputed_ratio: float
