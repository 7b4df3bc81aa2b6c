"""Results of cells: the numbers of every step of every contender, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from eval.latency.floor import StepWork
from eval.latency.machine import Rates
from keep_agent.rollout.results import StepNumbers
from keep_agent.rollout.run_folder import RunFolder

CELLS = "cells.jsonl"
JSON_KEYS = {"refusal": "refused", "bandwidth": "moved", "link": "carried", "summaries": "standings"}  # keys in files


def to_record(value: Any) -> dict[str, Any]:
    """Convert a dataclass to JSON data with the keys of the file format."""
    return asdict(value, dict_factory=lambda items: {JSON_KEYS.get(key, key): item for key, item in items})


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One timed step: its numbers, as defined in `keep_agent.rollout.trace`, and the work that it needs."""

    numbers: StepNumbers
    work: StepWork = field(default_factory=StepWork)

    @classmethod
    def from_json(cls, work: Sequence[Any], **numbers: Any) -> TimedStep:
        flops, nbytes, loaded, full_flops = work
        return cls(StepNumbers(**numbers), StepWork(tuple(flops), tuple(nbytes), loaded, tuple(full_flops)))


@dataclass
class TimedRun:
    """Steps of one contender in one cell; ``refusal`` is the reason if it could not finish."""

    name: str
    prompt: str  # kind: memory (rebuilt at every step), append (a transcript), plain (a planner's prompt, no reuse)
    steps: list[TimedStep] = field(default_factory=list)
    refusal: str = ""
    peak_cold: int | None = None  # peak growth of memory in the first step of the warm-up, in bytes
    peak: int | None = None  # largest peak growth in the later steps of the warm-up
    stored: int | None = None  # bytes in its storage at the end

    def to_json(self) -> dict[str, Any]:
        fields = {JSON_KEYS.get(key, key): value for key, value in vars(self).items()}
        return {**fields, "steps": [{**s.numbers.to_json(), "work": astuple(s.work)} for s in self.steps]}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TimedRun:
        fields = {**row, "refusal": row["refused"], "steps": [TimedStep.from_json(**step) for step in row["steps"]]}
        return cls(**{key: value for key, value in fields.items() if key != "refused"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of settings to time."""

    model: str
    device: str
    dtype: str
    tier: str  # a storage preset, or "own": each method's own storage
    segment_tokens: int
    churn: int | str  # segments that change per step, or "alfred": as in ALFRED
    segments: int  # in a prompt

    @property
    def group(self) -> str:
        """Name all settings but the number of segments. Cells of the same name share a panel of the figure."""
        tier = "" if self.tier == "own" else f", {self.tier}"
        where = f"{self.model}, {self.dtype} on {self.device}{tier}"
        return f"{where}, segments of {self.segment_tokens} tokens, churn {self.churn}"

    @property
    def id(self) -> str:
        return f"{self.group}, {self.segments} segments"


@dataclass(frozen=True)
class CellResult:
    """Results of all contenders of a cell and the machine's rates, or the ``refusal`` of the whole cell."""

    index: int
    id: str
    cell: Cell
    runs: Sequence[TimedRun] = ()
    rates: Sequence[Rates] = ()
    refusal: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "id": self.id,
            "cell": asdict(self.cell),
            "tracks": [run.to_json() for run in self.runs],
            "rates": [astuple(rates) for rates in self.rates],
            "refused": self.refusal,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> CellResult:
        cell = Cell(**row["cell"])
        runs = [TimedRun.from_json(run) for run in row["tracks"]]
        rates = [Rates(*sample) for sample in row["rates"]]
        return cls(row["index"], row["id"], cell, runs, rates, row["refused"], row["seconds"])


class LatencyFolder(RunFolder):
    """Run folder with one line per cell."""

    lines = CELLS
    result = CellResult
