"""Measured prefills of the engine with each loading stage over a throttled link, and a simulation of each prefill."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from eval.common.intervals import median_interval
from eval.loading.compare import STAGES, StageRun, bounds
from eval.loading.simulate import Link, simulate
from eval.loading.timeline import COMPUTE, LINK, Timeline
from eval.loading.workload import BESIDE, LayerWork, times_of
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.layout import Layout
from memory.stages import Capabilities, Loading, Probe, Recompute


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
class MeasuredPrefill:
    """One prefill of the engine: its events, its `LayerWork`, and the time that its computing waits for loading."""

    timeline: Timeline
    work: LayerWork
    waiting: float  # seconds that the compute worker waits for transfers

    @property
    def gap_seconds(self) -> float:
        """Seconds in which the compute worker neither computes nor waits for a transfer."""
        return self.timeline.idle(COMPUTE) - self.waiting

    def link_delay(self, link: Link) -> float:
        """Return the seconds by which the transfer jobs took longer than ``link`` should need."""
        return sum(job.seconds - link.seconds(job.nbytes, job.runs) for job in self.timeline.on(LINK))


@dataclass(frozen=True)
class PrefillPair:
    """A measured prefill, and its simulation with the measured times of its pieces."""

    measured: StageRun
    simulated: StageRun
    real: MeasuredPrefill

    @property
    def excess(self) -> float:
        """Relative excess of the measured over the simulated makespan."""
        return self.measured.timeline.makespan / self.simulated.timeline.makespan - 1

    def record(self, link: Link) -> dict[str, float]:
        line, limits = self.measured.timeline, self.measured.bounds
        return {
            MEASURED: line.makespan, SIMULATED: self.simulated.timeline.makespan,
            "bound": limits.simple, "tight_bound": limits.tight, "computing": line.busy(COMPUTE),
            "waited": self.real.waiting, "between": self.real.gap_seconds, "late": self.real.link_delay(link),
            "jobs": len(line.on(LINK)),
        }  # fmt: skip


def run_prefill(engine: Engine, layout: Layout, recompute: Recompute, loading: Loading, point: str) -> MeasuredPrefill:
    """Prefill a prompt whose segments all have blocks; ``point``: when rows are chosen, as in `LayerWork`."""
    recording = RecordingRecompute(recompute)
    trace = engine.prefill(layout, recording, loading).trace
    timeline = Timeline.of_trace(trace, separate_worker=point == BESIDE)
    times = times_of(timeline, len(recording.active))
    work = LayerWork(layout, tuple(recording.active), times, row_bytes(layout), point)
    return MeasuredPrefill(timeline, work, trace.timings["load"])


def row_bytes(layout: Layout) -> int:
    """Return the bytes of keys and values of one row at one layer in the prompt's blocks."""
    block = next(place.block for place in layout.placements if place.block is not None)
    return block.nbytes // (block.k.shape[0] * block.tokens)


INFINITE_LINK = Link("endless", math.inf)
COMPUTE_REPEATS = 3  # prefills from which the time of computing alone is measured
RESAMPLES = 1000
MEASURED, SIMULATED = "measured", "simulated"


@dataclass(frozen=True)
class StageTurns:
    """Prefills with one loading stage, one per turn of the measurement."""

    stage: str
    pairs: tuple[PrefillPair, ...]

    def median(self, value: Callable[[PrefillPair], float]) -> float:
        return statistics.median(map(value, self.pairs))

    @property
    def nbytes(self) -> int:
        """Bytes that a prefill loads."""
        return self.pairs[0].measured.timeline.nbytes

    @property
    def median_turn(self) -> PrefillPair:
        """Turn with the median makespan (the lower one for an even number)."""
        return sorted(self.pairs, key=lambda pair: pair.measured.timeline.makespan)[(len(self.pairs) - 1) // 2]

    def speedup(self, baseline: StageTurns) -> tuple[float, tuple[float, float] | None]:
        """Return the median over turns of baseline / own makespan, and its interval (None for a single turn)."""
        pairs = zip(baseline.pairs, self.pairs, strict=True)
        ratios = [slow.measured.timeline.makespan / fast.measured.timeline.makespan for slow, fast in pairs]
        return statistics.median(ratios), median_interval(ratios, RESAMPLES)

    def record(self, link: Link) -> dict[str, Any]:
        """Return JSON data: seconds and bytes of all turns, and the events of the median turn."""
        median_turn = self.median_turn
        return {
            "loading": self.stage,
            "turns": [pair.record(link) for pair in self.pairs],
            "times": asdict(median_turn.real.work.times),
            "active_rows": [rows.numel() for rows in median_turn.real.work.active],
            MEASURED: median_turn.measured.record,
            SIMULATED: median_turn.simulated.record,
        }


@dataclass(frozen=True)
class PrefillBench:
    """Benchmark: a model, a prompt whose segments have stored blocks, and the settings of its prefill."""

    model: LoadedModel
    layout: Layout
    recompute: Callable[[], Recompute]
    importance: str  # the engine's setting: choose rows ``before`` or ``beside`` the MLP
    choice_point: str  # the same moment, as ``choice_point`` of `LayerWork`
    chunk: float | None  # bytes of a job that loads for a later layer; None: the engine's choice for the link

    def compute_alone(self) -> tuple[float, int]:
        """Return the seconds of computing without waiting for loads, and the bytes to load."""
        with TransformersEngine(self.model, "inline", importance=self.importance) as engine:
            runs = [self._run(engine, "serial") for _ in range(1 + COMPUTE_REPEATS)][1:]
        seconds = statistics.median(bounds(real.work, INFINITE_LINK).compute for real in runs)
        return seconds, runs[0].timeline.nbytes

    def measure(
        self, names: Sequence[str], link: Link, repeats: int, report: Callable[[int], None]
    ) -> list[StageTurns]:
        """Run the stages in rotating order, so that noise affects all equally. The first turn only warms up."""
        turns: list[dict[str, PrefillPair]] = []
        throttle = throttle_of(link)
        chunk = throttle.chunk if self.chunk is None else self.chunk
        with TransformersEngine(self.model, "thread", throttle, self.importance, self.chunk) as engine:
            for turn in range(1 + repeats):
                report(turn)
                order = [names[(turn + i) % len(names)] for i in range(len(names))]
                turns.append({})
                for name in order:
                    real = self._run(engine, name)
                    limits, line = bounds(real.work, link), simulate(STAGES[name](), real.work, link, chunk)
                    runs = (real.timeline, MEASURED), (line, SIMULATED)
                    turns[-1][name] = PrefillPair(*(StageRun(name, line, limits, of) for line, of in runs), real)
        return [StageTurns(name, tuple(turn[name] for turn in turns[1:])) for name in names]

    def _run(self, engine: Engine, name: str) -> MeasuredPrefill:
        return run_prefill(engine, self.layout, self.recompute(), STAGES[name](), self.choice_point)


def throttle_of(link: Link) -> Throttle:
    """Return the throttle that emulates ``link``. Raises ConfigError for shared memory, or a time per copy."""
    if link.shared or link.per_copy:
        raise ConfigError(f"link {link.name} cannot be imitated by a throttle; use a bandwidth, and no time per copy")
    return Throttle(link.bandwidth / 1e9, 1e6 * link.latency)


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Set the number of torch threads (None: unchanged) inside the context; yield it."""
    previous = torch.get_num_threads()
    if count is not None and count < 1:
        raise ConfigError(f"--threads {count} is too few; use 1 or more")
    torch.set_num_threads(count or previous)
    try:
        yield count or previous
    finally:
        torch.set_num_threads(previous)
