"""Comparison of loading stages on the same prefill, and their distances from two lower bounds of its makespan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.loading.simulate import Link, simulate
from eval.loading.timeline import COMPUTE, LINK, Timeline
from eval.loading.workload import LayerWork
from keep_agent.errors import ConfigError
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.stages import Loading


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the makespan in seconds: ``compute`` without loading, ``transfer`` without computing.

    A row rests at a layer if it has a block and is not computed at this layer. Nothing can be loaded before the time
    ``dependency``, at which the first resting rows are known, so ``simple`` is max(compute, dependency + transfer).
    ``tight`` counts all dependencies, and the computing after the last transfer.
    """

    compute: float
    transfer: float
    dependency: float
    tight: float

    @property
    def simple(self) -> float:
        return max(self.compute, self.dependency + self.transfer)


def bounds(work: LayerWork, link: Link) -> Bounds:
    """Compute the bounds of schedules in which each job moves slices of one layer, all known to be needed.

    A slice is the keys and values of rows at one layer. A_m is the earliest start of layer m. Rows that first rest at
    layer i are unknown before K_i: K_0 = 0, and K_i = A_(i-1) + the time that layer i - 1 takes up to its choice.
    Take the rows that first rest at layer i or later. T(i, m) is the link's time for their slices at layers 0 to m.
    These slices move after K_i and before layer m starts, so A_m >= K_i + T(i, m) for all i <= m. Layers run in order,
    so A_m >= A_(m-1) + the computing of layer m - 1. The bound is attained if the link may pause a job, at no cost, to
    move slices of an earlier layer.
    """
    moving = _moving(work, link)
    starts, choice_known, ends = np.zeros(work.layers), np.zeros(work.layers), 0.0
    for layer in range(work.layers):
        starts[layer] = max(ends, (choice_known[: layer + 1] + moving[: layer + 1, layer]).max())
        ends = starts[layer] + work.seconds_to_end(layer)
        if layer + 1 < work.layers:
            choice_known[layer + 1] = starts[layer] + work.seconds_to_choice(layer)
    compute, first = sum(map(work.seconds_to_end, range(work.layers))), int(work.resting.any(1).argmax())
    known = sum(map(work.seconds_to_end, range(first - 1))) + work.seconds_to_choice(first - 1) if first else 0.0
    return Bounds(compute, float(moving[0, -1]), known, float(ends))


def _moving(work: LayerWork, link: Link) -> NDArray[np.float64]:
    """Return T(i, m) in seconds, shape (layers, layers), with a job per layer, which copies runs of adjacent rows.

    A row's first layer is the first layer at which it rests, or lies in a short gap of a run and is loaded with the
    run. T(i, m) counts resting rows whose first layer is i or later, and runs that contain a row with such a layer.
    """
    layers, starts = work.layers, [placement.start for placement in work.layout.placements]
    runs = [work.layout.runs(resting) for resting in work.resting]
    moves = np.array([work.layout.covered(of_layer) for of_layer in runs])
    since = np.where(moves.any(0), moves.argmax(0), layers)  # (rows,) first layers
    seconds = np.zeros((layers, layers))
    for layer in range(layers):
        spans = [(starts[place] + first, starts[place] + last) for place, (first, last) in runs[layer]]
        latest = [int(since[first:last].max()) for first, last in spans]  # by run: the latest `since` of its rows
        counts = np.bincount(since[work.resting[layer]], minlength=layers), np.bincount(latest, minlength=layers)
        later_rows, later_runs = (np.cumsum(count[::-1])[::-1] for count in counts)
        for i in range(layer + 1):
            seconds[i, layer] = link.seconds(int(later_rows[i]) * work.row_bytes, int(later_runs[i]))
    return seconds.cumsum(1)


STAGES: Mapping[str, type[Loading]] = {"serial": Serial, "next_layer": NextLayer, "layer_balanced": LayerBalanced}
BASELINE = "next_layer"


@dataclass(frozen=True)
class StageRun:
    """Prefill with one loading stage, and lower bounds of its makespan."""

    stage: str
    timeline: Timeline
    bounds: Bounds
    source: str = ""  # measured or simulated, if both are shown

    @property
    def excess(self) -> float:
        """Excess of the makespan over the simple bound, as a fraction of the bound."""
        return self.timeline.makespan / self.bounds.simple - 1

    @property
    def tight_excess(self) -> float:
        return self.timeline.makespan / self.bounds.tight - 1

    @property
    def record(self) -> dict[str, Any]:
        """Return JSON data: times in seconds, excesses as fractions."""
        line = self.timeline
        return {
            "loading": self.stage,
            "makespan": line.makespan,
            "idle_compute": line.idle(COMPUTE),
            "idle_link": line.idle(LINK),
            "over_bound": self.excess,
            "over_tight_bound": self.tight_excess,
            "bytes": line.nbytes,
            "jobs": len(line.on(LINK)),
            "bounds": {**asdict(self.bounds), "simple": self.bounds.simple},
            "events": [asdict(event) for event in line.events],
        }


def check_stages(names: Sequence[str]) -> None:
    """Raise ConfigError for an unknown stage, and for an empty list."""
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise ConfigError(f"loading {', '.join(unknown) or '(empty)'} is unknown: use {', '.join(STAGES)}")


def run_stages(names: Sequence[str], work: LayerWork, link: Link, chunk: float = math.inf) -> list[StageRun]:
    check_stages(names)
    limits = bounds(work, link)
    return [StageRun(name, simulate(STAGES[name](), work, link, chunk), limits) for name in names]


@dataclass(frozen=True)
class SweepPoint:
    """Results of all stages at one bandwidth; loading takes ``ratio`` times as long as computing."""

    ratio: float
    link: Link
    runs: list[StageRun]

    @property
    def record(self) -> dict[str, Any]:
        """Return JSON data: seconds and bytes per second; makespans by stage."""
        spans = {run.stage: run.timeline.makespan for run in self.runs}
        limits = asdict(self.runs[0].bounds)
        return {"ratio": self.ratio, "bandwidth": self.link.bandwidth, "makespan": spans, "bounds": limits}


def sweep(
    names: Sequence[str], work: LayerWork, link: Link, ratios: Sequence[float], chunk: float = math.inf
) -> list[SweepPoint]:
    """Simulate the stages over ``link`` with other bandwidths. Raises ConfigError if nothing is computed or moved."""
    nbytes, compute = int(work.resting.sum()) * work.row_bytes, bounds(work, link).compute
    if link.shared or not nbytes or not compute:
        remedy = "give a --link with a bandwidth" if link.shared else "some rows must be loaded, and some computed"
        raise ConfigError(f"nothing to sweep over link {link.name}: {remedy}")
    links = [replace(link, bandwidth=nbytes / (ratio * compute)) for ratio in ratios]
    return [SweepPoint(r, new, run_stages(names, work, new, chunk)) for r, new in zip(ratios, links, strict=True)]
