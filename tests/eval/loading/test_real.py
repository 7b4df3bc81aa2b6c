"""The engine's loader against the simulator: the same jobs in the same order, and layers that wait for the same.

The model is tiny; what an MLP takes is slept, and the link is slow, so that pieces and jobs take milliseconds, chosen
so that no decision hangs by less than some tenths of one. In the simulator a piece takes what it took in the run, as
does the first job, the second, and so on: what is compared is who waited for whom, and what the link did next. A
busy machine may stop a thread in between, so a run may be repeated; a loader of another order is wrong every time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch

from eval.loading.compare import STAGES
from eval.loading.measure import RealPrefill, run_prefill
from eval.loading.prompt import Prompt
from eval.loading.simulate import simulate
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, IMPORTANCE, LINK, Event, Timeline
from eval.loading.workload import AFTER, BEFORE, BESIDE, Times, Work
from memory.engine.models.load import LoadedModel
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import Engine
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.schedule import Schedule
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Recompute
from tests.waiting import until

MLPS = (0.002, 0.002, 0.002, 0.007, 0.013, 0.010)  # seconds slept in each layer's
PROMPT = Prompt(segments=8, tokens=4, query=3)
SEGMENT = 4 * 256  # bytes of a segment's slice of a layer: 2 heads of 16 numbers, keys and values, 4 bytes each
LINK_SPEED = SEGMENT / 0.003  # bytes per second: a segment's slice takes 3 ms
WAKING = 0.002  # seconds that a thread may take to go on
MARGIN = 0.0015  # seconds: what is closer together may come in either order
CUT = 1.5 * SEGMENT  # bytes: two segments to a job, or some single rows
WHEN = {"before": BEFORE, "beside": BESIDE}

RECOMPUTE: dict[str, Callable[[], Recompute]] = {
    "linear": lambda: MultiHop(Schedule("linear", 0.5)),
    "cosine": lambda: MultiHop(Schedule("cosine", 0.45)),
    "step": lambda: MultiHop(Schedule("step", 0.4)),
    "none": Nothing,
    "deviation": lambda: ValueDeviation(0.4),
}


@dataclass(frozen=True)
class Again(Link):
    """A link whose jobs take as long as those of a run, in their order; any behind them, as long as they should."""

    seen: Iterator[float] = field(default_factory=lambda: iter(()))

    @classmethod
    def of(cls, line: Timeline) -> Again:
        ends = _until_next(line.on(LINK))
        return cls("again", LINK_SPEED, seen=iter([end - job.start for job, end in ends]))

    def seconds(self, nbytes: float, runs: int) -> float:
        return next(self.seen, super().seconds(nbytes, runs))


def _until_next(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """Each event and its end, or where the next one starts if that is but a thread's waking later."""
    later = [event.start if event.start - before.end < WAKING else before.end for before, event in pairwise(events)]
    return list(zip(events, [*later, *(event.end for event in events[-1:])], strict=True))


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    slow = tiny_model("qwen2", layers=len(MLPS))
    for layer, seconds in zip(slow.decoder.layers, MLPS, strict=True):
        layer.mlp.register_forward_hook(lambda *_, seconds=seconds: time.sleep(seconds))
    yield slow
    torch.set_num_threads(threads)


def without_gaps(real: RealPrefill) -> Work:
    """The work of a run, where the compute worker's pieces take until the next one began."""
    times = {kind: [0.0] * real.work.layers for kind in ("attention", "importance", "mlp")}
    for lane in (COMPUTE, IMPORTANCE):
        for event, end in _until_next(real.timeline.on(lane)):
            times[event.kind][event.layer] = end - event.start
    return replace(real.work, times=Times(*(tuple(times[kind]) for kind in ("attention", "importance", "mlp"))))


def jobs(line: Timeline) -> list[tuple[int, int, int]]:
    return [(job.layer, job.nbytes, job.runs) for job in line.on(LINK)]


def moments(line: Timeline) -> dict[tuple[str, str, int, int], float]:
    """When each event starts and ends; a layer's jobs are numbered."""
    found: dict[tuple[str, str, int, int], float] = {}
    for event in line.events:
        number = sum(key[:3] == ("start", event.kind, event.layer) for key in found)
        found["start", event.kind, event.layer, number] = event.start
        found["end", event.kind, event.layer, number] = event.end
    return found


def too_early(line: Timeline) -> list[str]:
    """Layers that began before their slices were there."""
    begin = {event.layer: event.start for event in line.events if event.kind == "attention"}
    return [f"layer {job.layer} began before its slices" for job in line.on(LINK) if begin[job.layer] < job.end]


def differences(real: RealPrefill, played: Timeline) -> list[str]:
    """What the simulator would have done otherwise; empty if nothing."""
    if jobs(real.timeline) != jobs(played):
        return [f"jobs (layer, bytes, runs): {jobs(real.timeline)}, simulated {jobs(played)}"]
    ran, expected = moments(real.timeline), moments(played)
    order = sorted(expected, key=expected.__getitem__)
    wrong = [
        f"{b} {1e3 * (ran[a] - ran[b]):.1f} ms before {a}, simulated {1e3 * (expected[b] - expected[a]):.1f} ms behind"
        for i, a in enumerate(order)
        for b in order[i + 1 :]
        if expected[b] - expected[a] > MARGIN and ran[b] < ran[a]
    ]
    return too_early(real.timeline) + wrong


CASES = [
    (recompute, loading, importance, chunk)
    for recompute in RECOMPUTE
    for loading in STAGES
    for importance in WHEN
    for chunk in (math.inf, CUT)
    if loading != "serial" or chunk is math.inf  # what is due is never cut
]


@pytest.mark.parametrize(("recompute", "loading", "importance", "chunk"), CASES)
def test_the_loader_does_what_the_simulator_plays(
    recompute: str, loading: str, importance: str, chunk: float, model: LoadedModel
) -> None:
    narrow = AFTER if recompute == "deviation" else WHEN[importance]
    with Engine(model, "thread", Throttle(LINK_SPEED / 1e9), importance, chunk) as engine:
        layout, seen = PROMPT.encoded(engine), [""]

        def as_simulated() -> bool:
            real = run_prefill(engine, layout, RECOMPUTE[recompute](), STAGES[loading](), narrow)
            played = simulate(STAGES[loading](), without_gaps(real), Again.of(real.timeline), chunk)
            seen[:] = differences(real, played)
            return not seen

        until(as_simulated, lambda: "no run as simulated; the last: " + "; ".join(seen[:5]))
