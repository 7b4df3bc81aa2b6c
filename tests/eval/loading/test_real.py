"""Engine's loader against the simulator: the same jobs in the same order, and the same dependencies of layers.

The model is tiny; its MLPs sleep, and the link is slow: every piece of a layer and every job takes milliseconds, chosen
so that decisions are some tenths of a millisecond apart. The simulator uses the measured time of each piece and job, so
the tests compare dependencies and the order of jobs. A busy machine may delay a thread, so a run may be repeated; a
loader with another order fails every time.
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
from eval.loading.measure import MeasuredPrefill, run_prefill
from eval.loading.prompt import SyntheticPrompt
from eval.loading.simulate import Link, simulate
from eval.loading.timeline import COMPUTE, IMPORTANCE, LINK, Event, Timeline
from eval.loading.workload import AFTER, BEFORE, BESIDE, LayerWork, PieceTimes
from memory.engine.models.load import LoadedModel
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import TransformersEngine
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Recompute
from tests.waiting import until

MLPS = (0.002, 0.002, 0.002, 0.007, 0.013, 0.010)  # seconds of sleep in each layer's MLP
PROMPT = SyntheticPrompt(segments=8, tokens=4, query=3)
SEGMENT = 4 * 256  # bytes of a segment's slice of a layer: 2 heads of 16 numbers, keys and values, 4 bytes each
LINK_SPEED = SEGMENT / 0.003  # bytes per second: a segment's slice takes 3 ms
WAKING = 0.002  # seconds until a waiting thread continues
MARGIN = 0.0015  # seconds: closer events may come in either order
CUT = 1.5 * SEGMENT  # bytes of a job: two segments, or some single rows
WHEN = {"before": BEFORE, "beside": BESIDE}

RECOMPUTE: dict[str, Callable[[], Recompute]] = {
    "linear": lambda: MultiHop(Schedule("linear", 0.5)),
    "cosine": lambda: MultiHop(Schedule("cosine", 0.45)),
    "step": lambda: MultiHop(Schedule("step", 0.4)),
    "none": Nothing,
    "deviation": lambda: ValueDeviation(0.4),
}


@dataclass(frozen=True)
class ReplayLink(Link):
    """Link whose jobs take the measured times of a run, in their order; further jobs take the link's time."""

    durations: Iterator[float] = field(default_factory=lambda: iter(()))

    @classmethod
    def of(cls, line: Timeline) -> ReplayLink:
        ends = _until_next(line.on(LINK))
        return cls("again", LINK_SPEED, durations=iter([end - job.start for job, end in ends]))

    def seconds(self, nbytes: float, runs: int) -> float:
        return next(self.durations, super().seconds(nbytes, runs))


def _until_next(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """Return each event with its end, or with the start of the next one if only a thread's waking separates them."""
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


def without_gaps(real: MeasuredPrefill) -> LayerWork:
    """Return the work of a run with pieces extended to the start of the next one."""
    times = {kind: [0.0] * real.work.layers for kind in ("attention", "importance", "mlp")}
    for lane in (COMPUTE, IMPORTANCE):
        for event, end in _until_next(real.timeline.on(lane)):
            times[event.kind][event.layer] = end - event.start
    return replace(real.work, times=PieceTimes(*(tuple(times[kind]) for kind in ("attention", "importance", "mlp"))))


def jobs(line: Timeline) -> list[tuple[int, int, int]]:
    return [(job.layer, job.nbytes, job.runs) for job in line.on(LINK)]


def moments(line: Timeline) -> dict[tuple[str, str, int, int], float]:
    """Return the start and end of each event; a layer's jobs are numbered."""
    times: dict[tuple[str, str, int, int], float] = {}
    for event in line.events:
        number = sum(key[:3] == ("start", event.kind, event.layer) for key in times)
        times["start", event.kind, event.layer, number] = event.start
        times["end", event.kind, event.layer, number] = event.end
    return times


def too_early(line: Timeline) -> list[str]:
    """Name the layers that started before their slices had arrived."""
    begin = {event.layer: event.start for event in line.events if event.kind == "attention"}
    return [f"layer {job.layer} started before its slices" for job in line.on(LINK) if begin[job.layer] < job.end]


def differences(real: MeasuredPrefill, simulated: Timeline) -> list[str]:
    """Describe the differences between a run and its simulation."""
    if jobs(real.timeline) != jobs(simulated):
        return [f"jobs (layer, bytes, runs): {jobs(real.timeline)}, simulated {jobs(simulated)}"]
    ran, expected = moments(real.timeline), moments(simulated)
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
    if loading != "serial" or chunk is math.inf  # jobs that are due are never cut
]


@pytest.mark.parametrize(("recompute", "loading", "importance", "chunk"), CASES)
def test_the_loader_obeys_the_simulator(
    recompute: str, loading: str, importance: str, chunk: float, model: LoadedModel
) -> None:
    choice_point = AFTER if recompute == "deviation" else WHEN[importance]
    with TransformersEngine(model, "thread", Throttle(LINK_SPEED / 1e9), importance, chunk) as engine:
        layout, problems = PROMPT.encoded(engine), [""]

        def as_simulated() -> bool:
            real = run_prefill(engine, layout, RECOMPUTE[recompute](), STAGES[loading](), choice_point)
            simulated = simulate(STAGES[loading](), without_gaps(real), ReplayLink.of(real.timeline), chunk)
            problems[:] = differences(real, simulated)
            return not problems

        until(as_simulated, lambda: "no run follows the simulation; the last: " + "; ".join(problems[:5]))
