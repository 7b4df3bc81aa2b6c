"""Benchmark of the loading stages: the engine's prefills over a throttled link, each stage in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eval.common.intervals import median_interval
from eval.loading.bound import bounds
from eval.loading.compare import STAGES, StageRun
from eval.loading.measure import PrefillPair, RealPrefill, run_prefill
from eval.loading.simulate import simulate
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.layout import Layout
from memory.stages import Recompute

INFINITE_LINK = Link("endless", math.inf)
COMPUTE_REPEATS = 3  # prefills without loading time, to measure computing
RESAMPLES = 1000
MEASURED, SIMULATED = "measured", "simulated"


@dataclass(frozen=True)
class StageTurns:
    """Prefills of one stage, one per turn."""

    stage: str
    pairs: tuple[PrefillPair, ...]

    def median(self, value: Callable[[PrefillPair], float]) -> float:
        return statistics.median(map(value, self.pairs))

    @property
    def nbytes(self) -> int:
        """Bytes that a prefill loads."""
        return self.pairs[0].measured.timeline.nbytes

    @property
    def typical(self) -> PrefillPair:
        """The turn with the median makespan (the lower one of an even number)."""
        return sorted(self.pairs, key=lambda pair: pair.measured.timeline.makespan)[(len(self.pairs) - 1) // 2]

    def faster(self, baseline: StageTurns) -> tuple[float, tuple[float, float] | None]:
        """Return the median over turns of baseline / own makespan, and its interval (None for a single turn)."""
        pairs = zip(baseline.pairs, self.pairs, strict=True)
        ratios = [slow.measured.timeline.makespan / fast.measured.timeline.makespan for slow, fast in pairs]
        return statistics.median(ratios), median_interval(ratios, RESAMPLES)

    def record(self, link: Link) -> dict[str, Any]:
        """Return JSON data: seconds and bytes of all turns, and the events of the typical turn."""
        return {
            "loading": self.stage,
            "turns": [_numbers(pair, link) for pair in self.pairs],
            "times": asdict(self.typical.real.work.times),
            "active_rows": [rows.numel() for rows in self.typical.real.work.active],
            MEASURED: self.typical.measured.record,
            SIMULATED: self.typical.simulated.record,
        }


def _numbers(pair: PrefillPair, link: Link) -> dict[str, float]:
    return {
        MEASURED: pair.measured.timeline.makespan,
        SIMULATED: pair.simulated.timeline.makespan,
        "bound": pair.measured.bounds.simple,
        "tight_bound": pair.measured.bounds.tight,
        "computing": pair.measured.timeline.busy(COMPUTE),
        "waited": pair.real.waiting,
        "between": pair.real.between,
        "late": pair.real.late(link),
        "jobs": len(pair.measured.timeline.on(LINK)),
    }


@dataclass(frozen=True)
class Bench:
    """A model, a prompt with blocks, and the settings of its prefill.

    :param importance: the engine's setting, ``before`` or ``beside``; ``narrow`` is the same for `Work`
    :param chunk: bytes of a job that loads ahead; None: the engine's choice for the link
    """

    model: LoadedModel
    layout: Layout
    recompute: Callable[[], Recompute]
    importance: str
    narrow: str
    chunk: float | None

    def alone(self) -> tuple[float, int]:
        """Return the seconds of computing without waiting for loads, and the bytes to load."""
        with TransformersEngine(self.model, "inline", importance=self.importance) as engine:
            runs = [self._run(engine, "serial") for _ in range(1 + COMPUTE_REPEATS)][1:]
        seconds = statistics.median(bounds(real.work, INFINITE_LINK).compute for real in runs)
        return seconds, runs[0].timeline.nbytes

    def measure(
        self, names: Sequence[str], link: Link, repeats: int, report: Callable[[int], None]
    ) -> list[StageTurns]:
        """Run all stages in turn, in rotating order, so that noise affects all equally; the first turn is discarded.

        :param report: called with the number of each turn at its start
        """
        turns = []
        with TransformersEngine(self.model, "thread", throttle_of(link), self.importance, self.chunk) as engine:
            for turn in range(1 + repeats):
                report(turn)
                order = [names[(turn + i) % len(names)] for i in range(len(names))]
                turns.append({name: self._pair(engine, name, link) for name in order})
        return [StageTurns(name, tuple(turn[name] for turn in turns[1:])) for name in names]

    def _pair(self, engine: Engine, name: str, link: Link) -> PrefillPair:
        real = self._run(engine, name)
        limits = bounds(real.work, link)
        chunk = throttle_of(link).chunk if self.chunk is None else self.chunk
        timeline = simulate(STAGES[name](), real.work, link, chunk)
        return PrefillPair(
            StageRun(name, real.timeline, limits, MEASURED), StageRun(name, timeline, limits, SIMULATED), real
        )

    def _run(self, engine: Engine, name: str) -> RealPrefill:
        return run_prefill(engine, self.layout, self.recompute(), STAGES[name](), self.narrow)


def throttle_of(link: Link) -> Throttle:
    """Return the throttle that makes the engine's link behave like ``link``.

    :raises ConfigError: the link is shared memory, or has a time per copy, which a throttle cannot imitate
    """
    if link.shared or link.per_copy:
        raise ConfigError(f"link {link.name} cannot be imitated by a throttle; use a bandwidth, and no time per copy")
    return Throttle(link.bandwidth / 1e9, 1e6 * link.latency)


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Set the number of torch threads (None: unchanged) inside the context; yield it."""
    previous = torch.get_num_threads()
    if count is not None and count < 1:
        raise ConfigError(f"--threads {count} is no number of threads; use 1 or more")
    torch.set_num_threads(count or previous)
    try:
        yield count or previous
    finally:
        torch.set_num_threads(previous)
