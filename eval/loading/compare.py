"""Loading stages side by side on the same work, and how far each is from what is possible."""

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
    """One stage's prefill."""

    stage: str
    timeline: Timeline
    bounds: Bounds
    source: str = ""  # measured or simulated, where both are shown

    @property
    def over(self) -> float:
        """Share by which it is above the simple bound."""
        return self.timeline.makespan / self.bounds.simple - 1

    @property
    def over_tight(self) -> float:
        return self.timeline.makespan / self.bounds.tight - 1

    @property
    def record(self) -> dict[str, Any]:
        """For JSON: seconds."""
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
    """Raises ConfigError for a name that is no stage, and for none at all."""
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise ConfigError(f"loading {', '.join(unknown) or 'of no kind'} is unknown: use {', '.join(STAGES)}")


def run_stages(names: Sequence[str], work: Work, link: Link, chunk: float = math.inf) -> list[StageRun]:
    """Each stage in turn, from an empty state."""
    check_stages(names)
    limits = bounds(work, link)
    return [StageRun(name, simulate(STAGES[name](), work, link, chunk), limits) for name in names]


@dataclass(frozen=True)
class SweepPoint:
    """All stages over one bandwidth, at which the bytes alone take ``ratio`` times as long as computing."""

    ratio: float
    link: Link
    played: list[StageRun]

    @property
    def record(self) -> dict[str, Any]:
        """For JSON: seconds and bytes per second; makespans by stage."""
        spans = {one.stage: one.timeline.makespan for one in self.played}
        limits = asdict(self.played[0].bounds)
        return {"ratio": self.ratio, "bandwidth": self.link.bandwidth, "makespan": spans, "bounds": limits}


def sweep(
    names: Sequence[str], work: Work, link: Link, ratios: Sequence[float], chunk: float = math.inf
) -> list[SweepPoint]:
    """``link`` with other bandwidths and its own latencies.

    :raises ConfigError: nothing is computed or moved, so there is no ratio
    """
    nbytes, compute = int(work.resting.sum()) * work.row_bytes, bounds(work, link).compute
    if link.shared or not nbytes or not compute:
        raise ConfigError(f"over link {link.name} there is nothing to sweep: name a --link with a bandwidth")
    points = []
    for ratio in ratios:
        changed = replace(link, bandwidth=nbytes / (ratio * compute))
        points.append(SweepPoint(ratio, changed, run_stages(names, work, changed, chunk)))
    return points
