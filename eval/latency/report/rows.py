"""What a cell comes to: the numbers of every step of every contender. Plain data that survives JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from eval.latency.floor import Work
from eval.latency.rates import Rates
from keep_agent.rollout.results import StepNumbers
from keep_agent.rollout.run_folder import RunFolder

CELLS = "cells.jsonl"


@dataclass(frozen=True, slots=True)
class Timed:
    """One counted step: its numbers as `keep_agent.rollout.step_numbers` has them, and what it could not do without."""

    numbers: StepNumbers
    work: Work = field(default_factory=Work)

    def to_json(self) -> dict[str, Any]:
        return {**self.numbers.to_json(), "work": astuple(self.work)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Timed:
        values = dict(row)
        flops, moved, loaded, through = values.pop("work")
        return cls(StepNumbers(**values), Work(tuple(flops), tuple(moved), loaded, tuple(through)))


@dataclass
class Track:
    """A contender's way through a cell; ``refused`` says why it did not come to its end."""

    name: str
    prompt: str  # memory: rebuilt at every step | append: a transcript | memory, plain: see `contenders`
    steps: list[Timed] = field(default_factory=list)
    refused: str = ""
    peak_cold: int | None = None  # bytes that the first step grew by, at its height, while warming up
    peak: int | None = None  # the most of the later ones
    stored: int | None = None  # bytes in its storage at the end

    def to_json(self) -> dict[str, Any]:
        shallow = {key: value for key, value in vars(self).items() if key != "steps"}
        return {**shallow, "steps": [step.to_json() for step in self.steps]}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Track:
        return cls(**{**row, "steps": [Timed.from_json(step) for step in row["steps"]]})


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination that is timed."""

    model: str
    device: str
    dtype: str
    tier: str
    segment_tokens: int
    churn: int | str
    segments: int

    @property
    def group(self) -> str:
        """Everything but the number of segments: a line of the plot."""
        tier = "" if self.tier == "own" else f", {self.tier}"
        where = f"{self.model}, {self.dtype} on {self.device}{tier}"
        return f"{where}, segments of {self.segment_tokens} tokens, churn {self.churn}"

    @property
    def id(self) -> str:
        return f"{self.group}, {self.segments} segments"


@dataclass(frozen=True)
class CellResult:
    """All contenders of a cell and the machine's rates meanwhile, or why the cell was ``refused`` as a whole."""

    index: int
    id: str
    cell: Cell
    tracks: Sequence[Track] = ()
    rates: Sequence[Rates] = ()
    refused: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "id": self.id,
            "cell": asdict(self.cell),
            "tracks": [track.to_json() for track in self.tracks],
            "rates": [astuple(rates) for rates in self.rates],
            "refused": self.refused,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> CellResult:
        cell = Cell(**row["cell"])
        tracks = [Track.from_json(track) for track in row["tracks"]]
        rates = [Rates(*sample) for sample in row["rates"]]
        return cls(row["index"], row["id"], cell, tracks, rates, row["refused"], row["seconds"])


class LatencyFolder(RunFolder):
    """A run with one line per cell."""

    lines = CELLS
    result = CellResult
