"""Measured prefills: one run of the engine's loader over a link, and the work with which the simulator repeats it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from eval.loading.compare import StageRun
from eval.loading.layer_times import times_of
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK, Timeline
from eval.loading.workload import BESIDE, Work
from memory.prompt.layout import Layout
from memory.stages import Capabilities, Loading, Probe, Recompute

if TYPE_CHECKING:
    from memory.engine.base import Engine


@dataclass
class RecordingRecompute:
    """Recompute stage that records the rows active at each layer of the last prompt."""

    stage: Recompute
    active: list[torch.Tensor] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return self.stage.capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self.active = [self.stage.first(layout, layers)]
        return self.active[0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.active.append(self.stage.narrow(layer, active, probe))
        return self.active[-1]


@dataclass(frozen=True)
class RealPrefill:
    """One prefill of the engine: its events, its work, and the time that the compute worker waited for slices."""

    timeline: Timeline
    work: Work
    waiting: float  # seconds

    @property
    def between(self) -> float:
        """Seconds between the compute worker's pieces, without waiting for slices."""
        return self.timeline.idle(COMPUTE) - self.waiting

    def late(self, link: Link) -> float:
        """Return the seconds by which the jobs exceeded the times of ``link``."""
        return sum(job.seconds - link.seconds(job.nbytes, job.runs) for job in self.timeline.on(LINK))


@dataclass(frozen=True)
class PrefillPair:
    """A measured prefill, and its simulation with the measured times of its pieces."""

    measured: StageRun
    simulated: StageRun
    real: RealPrefill

    @property
    def over(self) -> float:
        """Relative excess of the measured over the simulated makespan."""
        return self.measured.timeline.makespan / self.simulated.timeline.makespan - 1


def run_prefill(engine: Engine, layout: Layout, recompute: Recompute, loading: Loading, narrow: str) -> RealPrefill:
    """Prefill a prompt whose units all have a block.

    :param narrow: when the engine and the stage choose rows, see `Work`
    """
    recording = RecordingRecompute(recompute)
    trace = engine.prefill(layout, recording, loading).trace
    timeline = Timeline.of_trace(trace, beside=narrow == BESIDE)
    times = times_of(timeline, len(recording.active))
    work = Work(layout, tuple(recording.active), times, row_bytes(layout), narrow)
    return RealPrefill(timeline, work, trace.timings["load"])


def row_bytes(layout: Layout) -> int:
    """Return the bytes of keys and values of one row at one layer in the prompt's blocks."""
    block = next(place.block for place in layout.placements if place.block is not None)
    return block.nbytes // (block.k.shape[0] * block.tokens)
