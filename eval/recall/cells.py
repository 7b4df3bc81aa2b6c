"""Cells of probes, and answers to them: plain data, made and read without a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planners.training.recall_probes import Fact, make_probe


class Probe(Protocol):
    """Segments, a question about them, and what an answer is worth."""

    front: str  # read before the segments; a whole line, or ""
    facts: tuple[Fact, ...]
    question: str  # the prompt's end

    def room(self, length: Callable[[str], int]) -> int:
        """Tokens an answer may take, given how long a text is."""
        ...

    def grade(self, said: str) -> float:
        """0 to 1."""
        ...


Make = Callable[[str, int, str, random.Random], Probe]  # kind, segments, cue


@dataclass(frozen=True, slots=True)
class Cell:
    """Probes of one kind: what is asked, where the cue stands, and how many segments there are."""

    kind: str
    cue: str
    segments: int

    def probe(self, trial: int, seed: int, make: Make = make_probe) -> Probe:
        return make(self.kind, self.segments, self.cue, random.Random(f"{seed}/{self}/{trial}"))


@dataclass(frozen=True, slots=True)
class Answer:
    """One method's answer to one probe, and what its question turn computed."""

    cell: Cell
    trial: int
    method: str
    right: float  # 0 to 1
    memory_tokens: int
    prefill_tokens: float  # rows computed for the question, mean over the layers
    computed_ratio: float
    recomputed_ratio: float
