"""Real prefills: the engine's loader over a link, and the work that the simulator needs to play the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from eval.loading.compare import StageRun
from eval.loading.layer_times import times_of
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK, Timeline
from eval.loading.workload import BESIDE, Work
from memory.stages import Capabilities, Layout, Loading, Probe, Recompute

if TYPE_CHECKING:
    from memory.engine.transformers.engine import Engine


@dataclass
class RecordingRecompute:
    """A recompute stage whose choices are kept: the rows active at each layer of the last prompt."""

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
    """One prefill that was run: its events, the work it was, and how long the compute worker ``waited`` for slices."""

    timeline: Timeline
    work: Work
    waited: float  # seconds

    @property
    def between(self) -> float:
        """Seconds between the compute worker's pieces that are no waiting for slices."""
        return self.timeline.idle(COMPUTE) - self.waited

    def late(self, link: Link) -> float:
        """Seconds that the jobs took longer than ``link`` would have."""
        return sum(job.seconds - link.seconds(job.nbytes, job.runs) for job in self.timeline.on(LINK))


@dataclass(frozen=True)
class PrefillPair:
    """A real prefill beside the one that the simulator plays with the times of its pieces, under the same stage."""

    measured: StageRun
    simulated: StageRun
    real: RealPrefill

    @property
    def over(self) -> float:
        """Share by which the real one is above the simulated one."""
        return self.measured.timeline.makespan / self.simulated.timeline.makespan - 1


def run_prefill(engine: Engine, layout: Layout, recompute: Recompute, loading: Loading, narrow: str) -> RealPrefill:
    """One prefill of a prompt whose units all have a block.

    :param narrow: when the engine and the stage choose rows, as `Work` has it
    """
    recorded = RecordingRecompute(recompute)
    trace = engine.prefill(layout, recorded, loading).trace
    line = Timeline.of_trace(trace, beside=narrow == BESIDE)
    times = times_of(line, len(recorded.active))
    return RealPrefill(
        line, Work(layout, tuple(recorded.active), times, row_bytes(layout), narrow), trace.timings["load"]
    )


def row_bytes(layout: Layout) -> int:
    """Keys and values of one row at one layer, as they rest in the prompt's blocks."""
    block = next(place.block for place in layout.placements if place.block is not None)
    return block.nbytes // (block.k.shape[0] * block.tokens)
