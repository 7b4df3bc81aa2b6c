"""Comparison of loading stages on the same work, with the distance of each from the lower bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from eval.loading.bound import Bounds, bounds
from eval.loading.simulate import simulate
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK, Timeline
from eval.loading.workload import Work
from keep_agent.errors import ConfigError
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.stages import Loading

STAGES: Mapping[str, type[Loading]] = {"serial": Serial, "next_layer": NextLayer, "layer_balanced": LayerBalanced}
BASELINE = "next_layer"


@dataclass(frozen=True)
class StageRun:
    """Prefill of one stage."""

    stage: str
    timeline: Timeline
    bounds: Bounds
    source: str = ""  # measured or simulated, if both are shown

    @property
    def over(self) -> float:
        """Relative excess over the simple bound."""
        return self.timeline.makespan / self.bounds.simple - 1

    @property
    def over_tight(self) -> float:
        return self.timeline.makespan / self.bounds.tight - 1

    @property
    def record(self) -> dict[str, Any]:
        """Return JSON data: seconds."""
        line = self.timeline
        return {
            "loading": self.stage,
            "makespan": line.makespan,
            "idle_compute": line.idle(COMPUTE),
            "idle_link": line.idle(LINK),
            "over_bound": self.over,
            "over_tight_bound": self.over_tight,
            "bytes": line.nbytes,
            "jobs": len(line.on(LINK)),
            "bounds": {**asdict(self.bounds), "simple": self.bounds.simple},
            "events": [asdict(event) for event in line.events],
        }


def check_stages(names: Sequence[str]) -> None:
    """Raises ConfigError for an unknown stage, and for an empty list."""
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise ConfigError(f"loading {', '.join(unknown) or '(empty)'} is unknown: use {', '.join(STAGES)}")


def run_stages(names: Sequence[str], work: Work, link: Link, chunk: float = math.inf) -> list[StageRun]:
    """Simulate each stage."""
    check_stages(names)
    limits = bounds(work, link)
    return [StageRun(name, simulate(STAGES[name](), work, link, chunk), limits) for name in names]


@dataclass(frozen=True)
class SweepPoint:
    """All stages with one bandwidth, with which the bytes take ``ratio`` times as long as computing."""

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
    names: Sequence[str], work: Work, link: Link, ratios: Sequence[float], chunk: float = math.inf
) -> list[SweepPoint]:
    """Simulate the stages over ``link`` with other bandwidths and its own latencies.

    :raises ConfigError: there is nothing to compute or to move
    """
    nbytes, compute = int(work.resting.sum()) * work.row_bytes, bounds(work, link).compute
    if link.shared or not nbytes or not compute:
        raise ConfigError(f"over link {link.name} there is nothing to sweep: give a --link with a bandwidth")
    points = []
    for ratio in ratios:
        changed = replace(link, bandwidth=nbytes / (ratio * compute))
        points.append(SweepPoint(ratio, changed, run_stages(names, work, changed, chunk)))
    return points
