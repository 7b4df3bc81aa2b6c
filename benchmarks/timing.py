"""Timing of one call, of several contenders in turns, and of the calls of a recompute stage."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe, Recompute


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def take_turns(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the lower quartile of each contender's milliseconds; the first two turns warm up."""
    turns = [{name: timed(work) for name, work in contenders.items()} for _ in range(repeats + 2)][2:]
    return {name: statistics.quantiles((turn[name] for turn in turns), n=4)[0] for name in contenders}


@dataclass
class TimedStage:
    """Recompute stage with a stopwatch: ``times`` holds the milliseconds of each call, GPU work included."""

    stage: Recompute
    times: list[float] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return self.stage.capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return self._measure(lambda: self.stage.first(layout, layers))

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return self._measure(lambda: self.stage.narrow(layer, active, probe))

    def _measure(self, choose: Callable[[], torch.Tensor]) -> torch.Tensor:
        start = time.perf_counter()
        rows = choose()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(1e3 * (time.perf_counter() - start))
        return rows
