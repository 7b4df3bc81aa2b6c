"""Cells of probes, answers to them, and the run folder of answers. This module does not load torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from eval.common.out_folder import OutFolder
from eval.recall.ruler_probes import RulerProbe
from planners.training import recall_probes

Probe = recall_probes.RecallProbe | RulerProbe
ProbeMaker = Callable[[str, int, str, random.Random], Probe]  # arguments: kind, segments, cue, generator


@dataclass(frozen=True, slots=True)
class Cell:
    """Probes of one kind, cue (place of the question) and size. Seeds contain the cell's repr, so rename no field."""

    kind: str
    cue: str
    segments: int

    def probe(self, trial: int, seed: int, make: ProbeMaker = recall_probes.make_probe) -> Probe:
        return make(self.kind, self.segments, self.cue, random.Random(f"{seed}/{self}/{trial}"))


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Answer of one method to one probe, and the cost of its question turn."""

    cell: Cell
    trial: int
    method: str
    right: float  # score from 0 to 1
    memory_tokens: int
    prefill_tokens: float  # rows computed in the question turn, averaged over the layers
    computed_ratio: float
    recomputed_ratio: float


PROBES = "probes.jsonl"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One line of the file `PROBES`."""

    index: int  # position among all probes and methods, in the order of evaluation
    answer: ProbeAnswer

    @property
    def id(self) -> str:
        cell = self.answer.cell
        return f"{cell.kind}/{cell.cue}/{cell.segments}/{self.answer.trial}/{self.answer.method}"

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, **asdict(self.answer)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ProbeRow:
        """Parse the output of `to_json`. Raises KeyError or TypeError for anything else."""
        values = {**row, "cell": Cell(**row["cell"])}
        return cls(values.pop("index"), ProbeAnswer(**values))


class RecallFolder(OutFolder):
    """Run folder of answers."""

    lines = PROBES
    result = ProbeRow
