"""Summary of cells for tables, figure and JSON: medians, speed-ups and growth, computed from the steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from eval.common.intervals import median_interval
from eval.common.variants import PLAIN
from eval.latency.machine import Rates
from eval.latency.report.rows import Cell, CellResult, TimedRun, TimedStep
from keep_agent.rollout.results import PARTS


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of values, with the 95 % interval of their median (None for a single value)."""

    count: int
    p50: float
    p95: float
    mean: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Summarize values; None if there are none."""
        if not len(values):
            return None
        data = np.asarray(values, float)
        middle, high = np.percentile(data, [50, 95])
        return cls(len(data), float(middle), float(high), float(data.mean()), median_interval(values))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed-up: ``paired`` is the median over steps of base time / own time, ``medians`` the ratio of both medians."""

    paired: float
    interval: tuple[float, float] | None
    medians: float

    @classmethod
    def of(cls, base: Sequence[float], times: Sequence[float]) -> Ratio | None:
        """Compare times of the same steps; None if the numbers of steps differ."""
        if not len(times) or len(base) != len(times):
            return None
        ratios = np.asarray(base, float) / np.asarray(times, float)
        return cls(float(np.median(ratios)), median_interval(ratios), float(np.median(base) / np.median(times)))


MIN_SIZES = 2  # sizes needed for a line; a parabola needs one more


@dataclass(frozen=True, slots=True)
class GrowthFit:
    """Milliseconds: ``fixed`` + ``linear`` n + ``quadratic`` n², for ``sizes`` values of n from ``low`` to ``high``."""

    fixed: float
    linear: float
    quadratic: float
    sizes: int
    low: int
    high: int
    error: float  # largest relative deviation of the fit

    def at(self, segments: float) -> float:
        return self.fixed + self.linear * segments + self.quadratic * segments**2

    def slope(self, segments: float) -> float:
        """Return the milliseconds that one more segment costs."""
        return self.linear + 2 * self.quadratic * segments

    def curved(self, segments: float) -> float:
        """Return the quadratic part's share of the milliseconds."""
        total = self.at(segments)
        return self.quadratic * segments**2 / total if total else 0.0


def fit(segments: Sequence[int], ms: Sequence[float]) -> GrowthFit | None:
    """Fit coefficients >= 0 by least squares of relative errors, so that no size dominates; None for a single size."""
    sizes, times = np.asarray(segments, float), np.asarray(ms, float)
    different = len(set(segments))
    if different < MIN_SIZES:
        return None
    powers = np.stack([sizes**power for power in range(min(3, different))], 1) / times[:, None]
    best, least = np.zeros(3), np.inf
    for count in range(1, powers.shape[1] + 1):
        for terms in combinations(range(powers.shape[1]), count):
            coefficients = np.linalg.lstsq(powers[:, terms], np.ones(len(times)), rcond=None)[0]
            loss = float(np.square(powers[:, terms] @ coefficients - 1).sum())
            if coefficients.min() >= 0 and loss < least - 1e-15:
                best, least = np.zeros(3), loss
                best[list(terms)] = coefficients
    error = float(np.abs(powers @ best[: powers.shape[1]] - 1).max())
    return GrowthFit(*map(float, best), different, min(segments), max(segments), error)


BASELINES = ("full_recompute", "cacheblend", PLAIN)  # speed-ups are relative to each of these
STEP_KINDS: Mapping[str, Callable[[TimedStep], bool]] = {  # flip: a group became static or dynamic
    "all": lambda step: True,
    "warm": lambda step: not step.numbers.cold,
    "no_flip": lambda step: not step.numbers.cold and not step.numbers.flips,
    "flip": lambda step: not step.numbers.cold and step.numbers.flips > 0,
    "cold": lambda step: step.numbers.cold,
}
TIMINGS = ("ttft_ms", "ttft_overlapped_ms", "decision_ms", "score_ms")
COUNT_KEYS = ("prompt_tokens", "memory_tokens", "fresh_tokens", "token_layers", "encoded_token_layers", "loaded_bytes")


@dataclass(frozen=True, slots=True)
class FloorDistance:
    """Medians over steps: ``ms`` of the floor, ``times`` = TTFT / floor, ``of_rows`` = TTFT / `StepWork.rows_ms`."""

    ms: float
    times: float
    of_rows: float


@dataclass(frozen=True)
class ContenderSummary:
    """Summary of one contender in one cell."""

    name: str
    prompt: str
    refusal: str = ""
    times: Mapping[str, Mapping[str, Spread | None]] | None = None  # by TIMINGS, then by STEP_KINDS
    parts: Mapping[str, float] | None = None  # p50 in ms, by PARTS
    overhead: float = 0.0  # p50 in ms of update + retrieve + ask
    counts: Mapping[str, float] | None = None  # mean per step, by COUNT_KEYS
    computed_ratio: float = 0.0
    encoded_rows: float = 0.0  # mean per step, averaged over the layers
    ratios: Mapping[str, Ratio | None] | None = None  # by BASELINES
    floor: Mapping[str, FloorDistance | None] | None = None  # by STEP_KINDS
    peak: int | None = None
    peak_cold: int | None = None
    stored: int | None = None

    def spread(self, time: str = "ttft_ms", kind: str = "all") -> Spread | None:
        return self.times[time][kind] if self.times is not None else None


@dataclass(frozen=True)
class CellSummary:
    id: str
    cell: Cell
    rates: Rates | None
    summaries: Sequence[ContenderSummary] = ()
    refusal: str = ""
    kinds: Mapping[str, int] | None = None  # number of steps of each kind


@dataclass(frozen=True)
class GroupSummary:
    """Cells that differ only in the number of segments."""

    title: str
    cells: Sequence[CellSummary]
    growth: Mapping[str, GrowthFit | None]  # by contender: growth of the p50 of TTFT, without cold steps


def summarize(results: Sequence[CellResult]) -> list[GroupSummary]:
    """Summarize cells in groups, in the order of their first cells."""
    groups: dict[str, list[CellSummary]] = {}
    for result in sorted(results, key=lambda result: result.index):
        rates = Rates.median(result.rates) if result.rates else None
        runs = {run.name: run for run in result.runs if run.steps and not run.refusal}
        summaries = [_contender_summary(run, runs, rates) for run in result.runs]
        first = next(iter(runs.values()), None)
        kinds = {kind: sum(map(test, first.steps)) for kind, test in STEP_KINDS.items()} if first else None
        cell = CellSummary(result.id, result.cell, rates, summaries, result.refusal, kinds)
        groups.setdefault(result.cell.group, []).append(cell)
    return [GroupSummary(title, cells, _growths(cells)) for title, cells in groups.items()]


def _contender_summary(run: TimedRun, runs: Mapping[str, TimedRun], rates: Rates | None) -> ContenderSummary:
    if run.name not in runs or rates is None:
        return ContenderSummary(run.name, run.prompt, run.refusal)
    median, mean, numbers = statistics.median, statistics.fmean, [step.numbers for step in run.steps]
    parts = [dict.fromkeys(PARTS, 0.0) | dict(number.parts or {}) for number in numbers]
    steps = {kind: list(filter(test, run.steps)) for kind, test in STEP_KINDS.items()}
    spreads = ((time, {kind: [getattr(s.numbers, time) for s in of] for kind, of in steps.items()}) for time in TIMINGS)
    bases = {base: [step.numbers.ttft_ms for step in runs[base].steps] if base in runs else [] for base in BASELINES}
    return ContenderSummary(
        name=run.name,
        prompt=run.prompt,
        times={time: {kind: Spread.of(values) for kind, values in by_kind.items()} for time, by_kind in spreads},
        parts={part: median(values[part] for values in parts) for part in PARTS},
        overhead=median(values["update"] + values["retrieve"] + values["ask"] for values in parts),
        counts={name: mean(getattr(number, name) for number in numbers) for name in COUNT_KEYS},
        computed_ratio=mean(number.computed_ratio for number in numbers),
        encoded_rows=mean(number.encoded_token_layers / number.layers for number in numbers),
        ratios={base: Ratio.of(times, [number.ttft_ms for number in numbers]) for base, times in bases.items()},
        floor={kind: _distance(of, rates) for kind, of in steps.items()},
        peak=run.peak,
        peak_cold=run.peak_cold,
        stored=run.stored,
    )


def _distance(steps: Sequence[TimedStep], rates: Rates) -> FloorDistance | None:
    if not steps:
        return None
    floors = [step.work.floor_ms(rates) for step in steps]
    of_floor = [step.numbers.ttft_ms / ms for step, ms in zip(steps, floors, strict=True)]
    of_rows = [step.numbers.ttft_ms / step.work.rows_ms(rates) for step in steps]
    return FloorDistance(*map(statistics.median, (floors, of_floor, of_rows)))


def _growths(cells: Sequence[CellSummary]) -> dict[str, GrowthFit | None]:
    """Fit the growth without cold steps, which encode the whole memory."""
    points: dict[str, list[tuple[int, float]]] = {}
    for cell in cells:
        for summary in cell.summaries:
            spread = summary.spread(kind="warm")
            points.setdefault(summary.name, []).extend([(cell.cell.segments, spread.p50)] if spread else [])
    return {name: fit(*zip(*spread, strict=True)) if spread else None for name, spread in points.items()}
