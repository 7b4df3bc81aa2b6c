"""Properties of every schedule, whatever is dropped when, and however long its pieces take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.loading.bound import bounds
from eval.loading.layer_times import times_of
from eval.loading.simulate import simulate
from eval.loading.simulated_link import Link
from eval.loading.timeline import LANES, LINK
from eval.loading.workload import BESIDE, Work
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.stages import Loading
from tests.eval.loading.works import STAGES, Watched, links, work, works

EPSILON = 1e-9
CHUNKS = st.sampled_from((float("inf"), 1.0, 3.0))
stages = st.sampled_from(STAGES).map(lambda stage: stage())
quick = settings(max_examples=150)


@quick
@given(stages, works(together=6), links(free=False), CHUNKS)
def test_no_schedule_ends_before_its_bounds(stage: Loading, task: Work, link: Link, chunk: float) -> None:
    found = bounds(task, link)
    assert found.simple <= found.tight + EPSILON
    assert found.tight <= simulate(stage, task, link, chunk).makespan + EPSILON


@quick
@given(stages, works(together=6), links(free=False), CHUNKS)
def test_the_rules_hold(stage: Loading, task: Work, link: Link, chunk: float) -> None:
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
def test_each_row_moves_once_per_layer_that_needs_it(stage: Loading, task: Work, link: Link, chunk: float) -> None:
    watched = Watched(stage)
    line = simulate(watched, task, link, chunk)
    moved = np.zeros(task.resting.shape, int)
    for one in watched.seen:
        start = task.layout.placements[one.placement].start
        moved[one.first : one.last, start + one.rows[0] : start + one.rows[1]] += 1
    assert (moved == task.resting).all()
    per_layer = [sum(event.nbytes for event in line.on(LINK) if event.layer == n) for n in range(task.layers)]
    assert per_layer == (task.resting.sum(1) * task.row_bytes).tolist()


@quick
@given(works(), links(free=True), CHUNKS)
def test_without_latencies_nothing_is_slower_than_serial(task: Work, link: Link, chunk: float) -> None:
    """Serial adds computing and moving; in the others the compute worker waits only while the link works."""
    found = bounds(task, link)
    assert simulate(Serial(), task, link).makespan == pytest.approx(found.compute + found.transfer)
    for stage in (NextLayer(), LayerBalanced()):
        assert simulate(stage, task, link, chunk).makespan <= found.compute + found.transfer + EPSILON


@quick
@given(works(), links(free=True), st.integers(0, 3))
def test_what_is_known_at_once_is_loaded_as_early_as_can_be(task: Work, link: Link, drop: int) -> None:
    """Rows dropped together: nothing that is asked for later can be in a hurry, so the bound is met."""
    segments = len(task.layout.segments)
    times = task.times.attention, task.times.mlp, task.times.importance
    together = work([drop] * segments, *times, narrow=task.narrow)
    assert simulate(LayerBalanced(), together, link).makespan == pytest.approx(bounds(together, link).tight)


@quick
@given(works(), links(free=True), CHUNKS)
def test_layer_balanced_is_late_by_a_job_per_layer_at_most(task: Work, link: Link, chunk: float) -> None:
    line = simulate(LayerBalanced(), task, link, chunk)
    longest = max((event.seconds for event in line.on(LINK)), default=0.0)
    assert line.makespan <= bounds(task, link).tight + (task.layers - 1) * longest + EPSILON


@quick
@given(works(tokens=1), links(free=True))
def test_single_rows_come_close_to_the_tight_bound(task: Work, link: Link) -> None:
    """With jobs of a row each for layers whose turn has not come, what is late is late by a row per layer."""
    found = simulate(LayerBalanced(), task, link, chunk=1).makespan
    assert found <= bounds(task, link).tight + (task.layers - 1) * link.seconds(1, 1) + EPSILON


@quick
@given(stages, works(), links(free=False))
def test_more_bandwidth_never_raises_the_bounds(stage: Loading, task: Work, link: Link) -> None:
    faster = Link("faster", 2 * link.bandwidth, link.latency, link.per_copy)
    slow, fast = bounds(task, link), bounds(task, faster)
    assert (fast.simple, fast.tight) <= (slow.simple, slow.tight)
    assert fast.compute == slow.compute == pytest.approx(sum(map(task.to_end, range(task.layers))))


@quick
@given(stages, works(), links(free=False))
def test_times_can_be_read_off_a_timeline(stage: Loading, task: Work, link: Link) -> None:
    found = times_of(simulate(stage, task, link), task.layers)
    for kind in ("attention", "importance", "mlp"):
        assert getattr(found, kind) == pytest.approx(getattr(task.times, kind), abs=EPSILON)


@quick
@given(works())
def test_the_bounds_over_an_endless_link_are_the_computing(task: Work) -> None:
    endless = Link("shared", float("inf"))
    found = bounds(task, endless)
    assert found.simple == found.tight == pytest.approx(found.compute)
    assert simulate(NextLayer(), task, endless).makespan == pytest.approx(found.compute)
    total = sum(task.times.attention) + sum(task.times.mlp)
    assert found.compute >= total - EPSILON
    if task.narrow != BESIDE:
        assert found.compute == pytest.approx(total + sum(task.times.importance))
