"""Properties of every schedule, for random dropped rows and times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.loading.compare import bounds
from eval.loading.simulate import Link, simulate
from eval.loading.timeline import LANES, LINK
from eval.loading.workload import BESIDE, LayerWork, times_of
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.stages import Loading
from tests.eval.loading.works import STAGES, RecordingLoading, links, work, works

EPSILON = 1e-9
CHUNKS = st.sampled_from((float("inf"), 1.0, 3.0))
stages = st.sampled_from(STAGES).map(lambda stage: stage())
quick = settings(max_examples=150)


@quick
@given(stages, works(together=6), links(free=False), CHUNKS)
def test_no_makespan_is_below_the_bounds(stage: Loading, task: LayerWork, link: Link, chunk: float) -> None:
    limits = bounds(task, link)
    assert limits.simple <= limits.tight + EPSILON
    assert limits.tight <= simulate(stage, task, link, chunk).makespan + EPSILON


@quick
@given(stages, works(together=6), links(free=False), CHUNKS)
def test_workers_wait_by_the_rules(stage: Loading, task: LayerWork, link: Link, chunk: float) -> None:
    line = simulate(stage, task, link, chunk)
    for lane in LANES:
        assert all(a.end <= b.start + EPSILON for a, b in pairwise(line.on(lane))), lane
    begin = {event.layer: event.start for event in line.events if event.kind == "attention"}
    ends = {(event.kind, event.layer): event.end for event in line.events if event.kind != "load"}
    assert sorted(begin) == list(range(task.layers))
    for event in line.events:
        if event.kind == "load":
            assert event.end <= begin[event.layer] + EPSILON
        if event.kind == "importance":
            assert ends["attention", event.layer] <= event.start + EPSILON
            assert event.end <= begin[event.layer + 1] + EPSILON
    if not stage.overlaps:
        assert all(ends["mlp", event.layer - 1] <= event.start + EPSILON for event in line.on(LINK) if event.layer)


@quick
@given(stages, works(), links(free=False), CHUNKS)
def test_each_row_moves_once_per_layer_that_needs_it(stage: Loading, task: LayerWork, link: Link, chunk: float) -> None:
    recording = RecordingLoading(stage)
    line = simulate(recording, task, link, chunk)
    counts = np.zeros(task.resting.shape, int)
    for transfer in recording.transfers:
        start = task.layout.placements[transfer.placement].start
        counts[transfer.first : transfer.last, start + transfer.rows[0] : start + transfer.rows[1]] += 1
    assert (counts == task.resting).all()
    per_layer = [sum(event.nbytes for event in line.on(LINK) if event.layer == n) for n in range(task.layers)]
    assert per_layer == (task.resting.sum(1) * task.row_bytes).tolist()


@quick
@given(works(), links(free=True), CHUNKS)
def test_without_latencies_nothing_is_slower_than_serial(task: LayerWork, link: Link, chunk: float) -> None:
    """Serial takes the sum of computing and loading; with other stages the compute worker waits only for the link."""
    limits = bounds(task, link)
    assert simulate(Serial(), task, link).makespan == pytest.approx(limits.compute + limits.transfer)
    for stage in (NextLayer(), LayerBalanced()):
        assert simulate(stage, task, link, chunk).makespan <= limits.compute + limits.transfer + EPSILON


@quick
@given(works(), links(free=True), st.integers(0, 3))
def test_rows_dropped_together_meet_the_tight_bound(task: LayerWork, link: Link, drop: int) -> None:
    """All slices to load are known at once, so no request comes late and is more urgent."""
    segments = len(task.layout.segments)
    times = task.times.attention, task.times.mlp, task.times.importance
    together = work([drop] * segments, *times, choice_point=task.choice_point)
    assert simulate(LayerBalanced(), together, link).makespan == pytest.approx(bounds(together, link).tight)


@quick
@given(works(), links(free=True), CHUNKS)
def test_layer_balanced_exceeds_the_bound_by_at_most_a_job_per_layer(task: LayerWork, link: Link, chunk: float) -> None:
    line = simulate(LayerBalanced(), task, link, chunk)
    longest = max((event.seconds for event in line.on(LINK)), default=0.0)
    assert line.makespan <= bounds(task, link).tight + (task.layers - 1) * longest + EPSILON


@quick
@given(works(tokens=1), links(free=True))
def test_single_rows_come_close_to_the_tight_bound(task: LayerWork, link: Link) -> None:
    """A job that loads ahead has one row, so at most a row per layer delays more urgent ones."""
    makespan = simulate(LayerBalanced(), task, link, chunk=1).makespan
    assert makespan <= bounds(task, link).tight + (task.layers - 1) * link.seconds(1, 1) + EPSILON


@quick
@given(stages, works(), links(free=False))
def test_more_bandwidth_never_raises_the_bounds(stage: Loading, task: LayerWork, link: Link) -> None:
    faster = Link("faster", 2 * link.bandwidth, link.latency, link.per_copy)
    slow, fast = bounds(task, link), bounds(task, faster)
    assert (fast.simple, fast.tight) <= (slow.simple, slow.tight)
    assert fast.compute == slow.compute == pytest.approx(sum(map(task.seconds_to_end, range(task.layers))))


@quick
@given(stages, works(), links(free=False))
def test_times_of_a_timeline_are_those_of_the_work(stage: Loading, task: LayerWork, link: Link) -> None:
    times = times_of(simulate(stage, task, link), task.layers)
    for kind in ("attention", "importance", "mlp"):
        assert getattr(times, kind) == pytest.approx(getattr(task.times, kind), abs=EPSILON)


@quick
@given(works())
def test_the_bounds_over_an_infinite_link_are_the_computing(task: LayerWork) -> None:
    endless = Link("shared", float("inf"))
    limits = bounds(task, endless)
    assert limits.simple == limits.tight == pytest.approx(limits.compute)
    assert simulate(NextLayer(), task, endless).makespan == pytest.approx(limits.compute)
    total = sum(task.times.attention) + sum(task.times.mlp)
    assert limits.compute >= total - EPSILON
    if task.choice_point != BESIDE:
        assert limits.compute == pytest.approx(total + sum(task.times.importance))
