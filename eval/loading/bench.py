"""Real prefills under each loading stage in turn, over a link as slow as asked for, and their medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eval.common.intervals import ratio_interval
from eval.loading.bound import bounds
from eval.loading.compare import STAGES, StageRun
from eval.loading.measure import PrefillPair, RealPrefill, run_prefill
from eval.loading.simulate import simulate
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK
from keep_agent.errors import ConfigError
from memory.engine.models.load import LoadedModel
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import Engine
from memory.stages import Layout, Recompute

INFINITE_LINK = Link("endless", math.inf)
COMPUTE_REPEATS = 3  # prefills without a link, to know what computing takes
MEASURED, SIMULATED = "measured", "simulated"


@dataclass(frozen=True)
class StageTurns:
    """One stage's prefills, a pair per turn; all stages had the same turns."""

    stage: str
    pairs: tuple[PrefillPair, ...]

    def median(self, value: Callable[[PrefillPair], float]) -> float:
        return statistics.median(map(value, self.pairs))

    @property
    def nbytes(self) -> int:
        """What a prefill loads."""
        return self.pairs[0].measured.timeline.nbytes

    @property
    def typical(self) -> PrefillPair:
        """The turn of the median makespan (of an even number, the lower one)."""
        return sorted(self.pairs, key=lambda pair: pair.measured.timeline.makespan)[(len(self.pairs) - 1) // 2]

    def faster(self, than: StageTurns) -> tuple[float, tuple[float, float] | None]:
        """Median of the turns' ratios of makespans, and its interval; None for a single turn."""
        spans = zip(than.pairs, self.pairs, strict=True)
        ratios = [other.measured.timeline.makespan / own.measured.timeline.makespan for other, own in spans]
        ones = {turn: [1.0] for turn in range(len(ratios))}
        interval = ratio_interval({turn: [ratio] for turn, ratio in enumerate(ratios)}, ones)
        return statistics.median(ratios), interval

    def record(self, link: Link) -> dict[str, Any]:
        """For JSON: seconds and bytes; events of the typical turn."""
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
        "waited": pair.real.waited,
        "between": pair.real.between,
        "late": pair.real.late(link),
        "jobs": len(pair.measured.timeline.on(LINK)),
    }


@dataclass(frozen=True)
class Bench:
    """A model, a prompt with blocks, and how it is prefilled.

    :param importance: ``before`` or ``beside``, of the engine; ``narrow`` is what `Work` calls it
    :param chunk: bytes of a job for a layer whose turn has not come; None: as the engine takes it for a link
    """

    model: LoadedModel
    layout: Layout
    recompute: Callable[[], Recompute]
    importance: str
    narrow: str
    chunk: float | None

    def alone(self) -> tuple[float, int]:
        """(seconds, bytes): what computing takes where nothing has to be waited for, and what must be loaded."""
        with Engine(self.model, "inline", importance=self.importance) as engine:
            found = [self._run(engine, "serial") for _ in range(1 + COMPUTE_REPEATS)][1:]
        seconds = statistics.median(bounds(real.work, INFINITE_LINK).compute for real in found)
        return seconds, found[0].timeline.nbytes

    def measure(self, names: Sequence[str], link: Link, repeats: int, said: Callable[[int], None]) -> list[StageTurns]:
        """All stages in turn, so that a busy machine is busy for all of them; what the first turn takes is forgotten.

        :param said: is called with the number of each turn that begins
        """
        turns = []
        with Engine(self.model, "thread", throttle_of(link), self.importance, self.chunk) as engine:
            for turn in range(1 + repeats):
                said(turn)
                order = [names[(turn + i) % len(names)] for i in range(len(names))]
                turns.append({name: self._pair(engine, name, link) for name in order})
        return [StageTurns(name, tuple(turn[name] for turn in turns[1:])) for name in names]

    def _pair(self, engine: Engine, name: str, link: Link) -> PrefillPair:
        real = self._run(engine, name)
        limits = bounds(real.work, link)
        chunk = throttle_of(link).chunk if self.chunk is None else self.chunk
        played = simulate(STAGES[name](), real.work, link, chunk)
        return PrefillPair(
            StageRun(name, real.timeline, limits, MEASURED), StageRun(name, played, limits, SIMULATED), real
        )

    def _run(self, engine: Engine, name: str) -> RealPrefill:
        return run_prefill(engine, self.layout, self.recompute(), STAGES[name](), self.narrow)


def throttle_of(link: Link) -> Throttle:
    """What makes the engine's link like ``link``.

    :raises ConfigError: nothing moves over it, or its copies cost a time of their own, which no throttle has
    """
    if link.shared or link.per_copy:
        raise ConfigError(f"link {link.name} cannot be throttled to; use a bandwidth, and no time per copy")
    return Throttle(link.bandwidth / 1e9, 1e6 * link.latency)


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """So many threads compute, inside; None: as many as before. Yields the number."""
    before = torch.get_num_threads()
    if count is not None and count < 1:
        raise ConfigError(f"--threads {count} compute nothing; use 1 or more")
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)
