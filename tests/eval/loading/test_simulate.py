"""Timelines calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eval.loading.compare import bounds
from eval.loading.prompt import SyntheticPrompt
from eval.loading.simulate import Link, simulate
from eval.loading.timeline import COMPUTE, IMPORTANCE, LINK, Timeline
from eval.loading.workload import AFTER, BESIDE, LayerWork, PieceTimes
from keep_agent.errors import ConfigError
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Transfer
from tests.eval.loading.works import work

SECOND = Link("a byte per second", 1.0)

# Five layers, two segments of two rows: one is dropped at layer 1, one at layer 3; the first two layers are long.
BALANCING = work([1, 3], attention=[1] * 5, mlp=[5, 5, 0, 0, 0], tokens=2)


def loads(line: Timeline) -> list[tuple[int, float, float]]:
    return [(event.layer, event.start, event.end) for event in line.on(LINK)]


def starts(line: Timeline, kind: str) -> list[float]:
    return [event.start for event in line.events if event.kind == kind]


def test_serial_loads_a_layer_when_it_is_due() -> None:
    line = simulate(Serial(), BALANCING, SECOND)
    assert loads(line) == [(1, 6, 8), (2, 14, 16), (3, 17, 21), (4, 22, 26)]
    assert starts(line, "attention") == [0, 8, 16, 21, 26]
    assert (line.makespan, line.idle(COMPUTE), line.idle(LINK)) == (27, 12, 15)


def test_next_layer_loads_one_layer_ahead_and_newly_dropped_rows() -> None:
    line = simulate(NextLayer(), BALANCING, SECOND)
    assert loads(line) == [(1, 1, 3), (2, 3, 5), (3, 7, 9), (3, 13, 15), (4, 15, 19)]
    assert starts(line, "attention") == [0, 6, 12, 15, 19]
    assert line.makespan == 20


def test_layer_balanced_loads_rows_that_were_dropped() -> None:
    line = simulate(LayerBalanced(), BALANCING, SECOND)
    assert loads(line) == [(1, 1, 3), (2, 3, 5), (3, 5, 7), (4, 7, 9), (3, 13, 15), (4, 15, 17)]
    assert starts(line, "attention") == [0, 6, 12, 15, 17]
    assert line.makespan == 18
    assert [(event.lane, event.kind, event.layer) for event in line.events[:6]] == [
        (COMPUTE, "attention", 0), (LINK, "load", 1), (COMPUTE, "mlp", 0), (LINK, "load", 2), (LINK, "load", 3),
        (COMPUTE, "attention", 1),
    ]  # fmt: skip


def test_bounds_of_the_balanced_example() -> None:
    """Computing takes 15 s; 12 slices of a row are loaded, the first from 1 s on, 4 of the last layers from 13 s on."""
    limits = bounds(BALANCING, SECOND)
    assert (limits.compute, limits.dependency, limits.transfer, limits.simple, limits.tight) == (15, 1, 12, 15, 18)


def test_a_run_counts_from_the_layer_at_which_its_last_row_rests() -> None:
    """Row 1 is dropped at layer 1, row 0 beside it at layer 2 (17 s): only then can their run (k, v) be loaded."""
    active = torch.tensor([0, 1, 2]), torch.tensor([0, 2]), torch.tensor([2])
    task = LayerWork(SyntheticPrompt(1, 2, 1).layout(), active, PieceTimes((1, 5, 9), (0, 0, 0), (0, 0, 0)), 1)
    limits = bounds(task, Link("many small copies", 1.0, per_copy=5.0))
    assert (limits.transfer, limits.tight) == (11 + 12, 17 + 11 + 9)


def test_a_row_in_a_gap_moves_before_it_is_dropped() -> None:
    """Rows 0 and 2 of a unit are dropped at layer 1, row 1 between them at layer 3, after its slice was loaded."""
    gap = work([1, 3, 1], attention=[1] * 4, mlp=[20, 20, 0, 0], together=3)
    line = simulate(LayerBalanced(), gap, SECOND)
    assert loads(line) == [(1, 1, 4), (2, 4, 7), (3, 7, 10)]
    assert line.makespan == bounds(gap, SECOND).tight == 44


@pytest.mark.parametrize(("chunk", "makespans"), [(float("inf"), (14, 15)), (1, (14, 14))])
def test_loading_ahead_can_delay_an_urgent_job(chunk: float, makespans: tuple[float, float]) -> None:
    """Layer 3 is being loaded when layer 2 needs one more row; between small jobs this row is loaded first."""
    contested = work([1, 1, 2], attention=[1] * 4, mlp=[4, 0, 5, 0])
    spans = tuple(simulate(stage, contested, SECOND, chunk).makespan for stage in (NextLayer(), LayerBalanced()))
    assert spans == makespans


PIECES = {"attention": [1, 1], "mlp": [4, 1], "importance": [2, 0]}


def test_importance_before_the_mlp_runs_on_the_compute_worker() -> None:
    line = simulate(LayerBalanced(), work([1], **PIECES), SECOND)
    assert (starts(line, "importance"), starts(line, "mlp"), loads(line)) == ([1], [3, 8], [(1, 3, 4)])
    assert not line.on(IMPORTANCE) and line.makespan == 9


def test_importance_beside_the_mlp_runs_on_its_own_worker() -> None:
    line = simulate(LayerBalanced(), work([1], **PIECES, choice_point=BESIDE), SECOND)
    assert (starts(line, "importance"), starts(line, "mlp"), loads(line)) == ([1], [1, 6], [(1, 3, 4)])
    assert line.busy(IMPORTANCE) == 2 and line.makespan == 7


def test_the_next_layer_waits_for_a_choice_longer_than_the_mlp() -> None:
    slow = work([1], attention=[1, 1], mlp=[1, 0], importance=[5, 0], choice_point=BESIDE)
    line = simulate(LayerBalanced(), slow, Link("fast", 1e9))
    assert starts(line, "attention") == [0, pytest.approx(6)]
    assert starts(simulate(Serial(), slow, SECOND), "attention") == [0, 7]


def test_a_choice_that_reads_the_output_of_a_layer_comes_last() -> None:
    line = simulate(LayerBalanced(), work([1], **PIECES, choice_point=AFTER), SECOND)
    assert (starts(line, "importance"), starts(line, "mlp"), loads(line)) == ([5], [1, 9], [(1, 7, 8)])


def test_a_job_costs_its_latency_and_two_copies_per_run() -> None:
    """Adjacent rows of one block are one copy; different blocks need separate copies."""
    link = Link("slow to start", 1.0, latency=10.0, per_copy=3.0)
    apart = work([0, 0], attention=[0, 0], mlp=[0, 0], tokens=2)
    assert [event.runs for event in simulate(NextLayer(), apart, link).on(LINK)] == [2, 2]
    assert simulate(Serial(), apart, link).makespan == 2 * (10 + 2 * 2 * 3 + 4)
    prompt = apart.layout
    active = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 2, 3, 4]), torch.tensor([2, 3, 4])
    rows = LayerWork(prompt, active, PieceTimes((1, 1, 9), (0, 0, 0), (0, 0, 0)), 1)
    slow = Link("slow", 0.1)
    assert [(e.layer, e.runs) for e in simulate(LayerBalanced(), rows, slow).on(LINK)] == [(1, 1), (2, 1), (2, 1)]
    assert [(e.layer, e.runs) for e in simulate(Serial(), rows, slow).on(LINK)] == [(1, 1), (2, 1)]


def test_shared_memory_moves_nothing() -> None:
    line = simulate(Serial(), BALANCING, Link("shared", float("inf")))
    assert (line.makespan, line.busy(LINK), line.nbytes) == (15, 0, 0)


def test_a_stage_that_omits_a_row_is_refused() -> None:
    class Forgetful(LayerBalanced):
        def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
            return super().schedule(layout, layer, active, layers)[:-1]

    with pytest.raises(ConfigError, match="Forgetful left 1 rows without keys at layer 1"):
        simulate(Forgetful(), work([1], **PIECES), SECOND)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"choice_point": "first"}, "choice_point='first'"), ({"active": ()}, "active rows of 0 layers, but times of 5")],
)
def test_inconsistent_work_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(BALANCING, **change)


@pytest.mark.parametrize("mlp", [(1.0, 1.0), (-1.0,), (float("nan"),), ()])
def test_invalid_times_are_refused(mlp: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        PieceTimes((1.0,), (0.0,), mlp)
