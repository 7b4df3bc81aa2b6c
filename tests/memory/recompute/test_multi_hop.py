from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.prompt.layout import Layout
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.stages import SCHEDULES
from tests.memory.layouts import MatrixProbe, make_layout, mark_exact
from tests.references.multi_hop import choose


@given(st.sampled_from(SCHEDULES), st.integers(2, 64), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.99))
@settings(max_examples=300)
def test_schedules_keep_their_average(shape: str, layers: int, average: float, last: float, until: float) -> None:
    ratios = Schedule(shape, average, last, until).ratios(layers)
    assert len(ratios) == layers - 1 and sum(ratios) / len(ratios) == pytest.approx(average)
    assert all(b <= a + 1e-9 for a, b in zip([1.0, *ratios], [*ratios, 0.0], strict=True))


def test_the_default_recomputes_everything_in_the_first_layers() -> None:
    """Attention in these layers does not yet show which rows the query needs."""
    for layers in (12, 24, 28, 48):
        ratios = Schedule().ratios(layers)
        whole = [ratio for ratio in ratios if ratio == 1.0]
        assert 2 <= len(whole) <= layers / 5 and ratios[len(whole)] < 0.2


@pytest.mark.parametrize(("layers", "whole"), [(12, 2), (24, 4)])
def test_a_step_ends_before_the_last_layer(layers: int, whole: int) -> None:
    assert Schedule().ratios(layers).count(1.0) == whole
    for until in (0.0, 0.5, 0.96, 0.999):
        for count in (2, 3, layers - 1):
            first, *_, last = Schedule(until=until).ratios(count + 1)
            assert first > last, f"{count} layers, until {until}"


def test_counts_are_rounded_up_to_one() -> None:
    assert Schedule("linear", 0.25).counts(5, 8) == [8, 4, 3, 1, 1]
    assert Schedule("step", 0.01).counts(3, 8) == [8, 1, 1] and Schedule("step", 0.0).counts(3, 8) == [8, 0, 0]


def random_weights(layout: Layout, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax weights with a causal mask, and without one."""
    scores = 3 * torch.randn(layout.rows, layout.rows, generator=torch.Generator().manual_seed(seed)).double()
    causal = torch.ones_like(scores).tril().bool()
    return scores.masked_fill(~causal, -torch.inf).softmax(-1), scores.softmax(-1)


def reference(layout: Layout, probes: list[MatrixProbe], ratios: list[float], stage: MultiHop) -> list[set[int]]:
    """Return the stored segments active at layers 1, 2, ... by the dense reference."""
    rows, query_rows = list(range(layout.rows)), list(range(layout.query, layout.rows))
    members = [list(range(span.start, span.stop)) for span in layout.segments]
    playing = [i for i, span in enumerate(layout.segments) if not layout.fresh[span.start]]
    total, active, causal = len(playing), [], stage.direction == "causal"
    knobs = stage.max_hops, stage.relative and causal, stage.query_weight
    for probe, ratio in zip(probes, ratios, strict=True):
        weights = (probe.weights if causal else probe.later)[None]
        count = max(1, round(ratio * total))
        playing, _ = choose(probe.weights[None], weights, rows, query_rows, members, playing, count, *knobs)
        active.append(set(playing))
    return active


@pytest.mark.parametrize(("direction", "relative"), [("causal", True), ("causal", False), ("both", True)])
@pytest.mark.parametrize(("hops", "weight"), [(0, 0.5), (1, 0.5), (6, 0), (6, 0.3)])
@pytest.mark.parametrize("seed", range(4))
def test_selection_equals_the_reference(direction: str, relative: bool, hops: int, weight: float, seed: int) -> None:
    layers, schedule = 6, Schedule("linear", 0.4)
    layout = make_layout([3, 1, 4, 2, 5, 2, 6, 3, 1], fresh=[2])
    probes = [MatrixProbe(layout, *random_weights(layout, 10 * seed + n), n) for n in range(layers - 1)]
    stage = MultiHop(schedule, hops, direction, relative, weight)
    expected = reference(layout, probes, schedule.ratios(layers), stage)
    active = stage.first(layout, layers)
    assert active.tolist() == list(range(1, layout.rows))  # all rows except the context
    for probe, relevant in zip(probes, expected, strict=True):
        following = stage.narrow(probe.layer, active, probe)
        assert set(following.tolist()) <= set(active.tolist())
        segments = set(layout.segment_of[following].tolist()) - {-1}
        assert segments == relevant | {2}
        whole = [r for s in segments for r in range(layout.segments[s].start, layout.segments[s].stop)]
        assert sorted([*whole, *range(layout.query, layout.rows)]) == following.tolist()
        if probe.hops is not None:
            assert {edge[1] for edge in probe.edges} == relevant and probe.hops <= hops
        active = following
    assert stage.narrow(layers - 1, active, probes[-1]) is active


def test_importance_follows_a_chain() -> None:
    layout = make_layout([1] * 5, context=0, query=1)
    weights = torch.full((6, 6), 1e-3, dtype=torch.float64)
    weights[5, 4] = 0.9  # query -> door
    weights[5, 3] = 0.05
    weights[4, 2] = weights[4, 4] = 0.5  # door -> key
    weights[2, 0] = weights[2, 2] = 0.8  # key -> table
    schedule = Schedule("step", 0.4, 1.0)

    def choose(hops: int, weight: float = 0) -> tuple[set[int], MatrixProbe]:
        stage = MultiHop(schedule, hops, relative=False, query_weight=weight)
        probe = MatrixProbe(layout, weights, weights, 0)
        active = stage.narrow(0, stage.first(layout, 3), probe)
        return set(layout.segment_of[active].tolist()) - {-1}, probe

    assert choose(0)[0] == {3, 4} and choose(1)[0] == {2, 4}
    relevant, probe = choose(8)
    assert relevant == {0, 2}
    assert probe.hops == 3  # the last one changes nothing
    assert [edge[:2] for edge in probe.edges] == [(2, 0), (4, 2)]
    assert choose(8, 0.5)[0] == {2, 4}, "the query's own share keeps the door"


def test_uniform_attention_favours_no_segment() -> None:
    layout = make_layout([1] * 8, context=0, query=1)
    weights = torch.ones(9, 9, dtype=torch.float64).tril()
    weights[8, 6:8] = 2.0
    weights /= weights.sum(-1, keepdim=True)
    weights[6, 6] = weights[7, 7] = 0.2  # slightly more self-attention

    def choose(relative: bool) -> set[int]:
        stage = MultiHop(Schedule("step", 0.25, 1.0), relative=relative, query_weight=0)
        active = stage.narrow(0, stage.first(layout, 3), MatrixProbe(layout, weights, weights, 0))
        return set(layout.segment_of[active].tolist()) - {-1}

    assert choose(relative=False) == {0, 6}  # fewer rows can attend to 7
    assert choose(relative=True) == {6, 7}


def test_without_memory_or_share_only_fresh_rows_stay() -> None:
    empty = make_layout([])
    stage = MultiHop()
    active = stage.first(empty, 4)
    assert stage.narrow(0, active, MatrixProbe(empty, *random_weights(empty, 0), 0)) is active
    layout = make_layout([2, 2])
    stage = MultiHop(Schedule("linear", 0.0))
    active = stage.narrow(0, stage.first(layout, 4), MatrixProbe(layout, *random_weights(layout, 0), 0))
    assert active.tolist() == [5, 6, 7]


def computed(layout: Layout, layers: int, limit: float | None) -> float:
    """Return the computed share of all token-layers, with all rows in layer 0."""
    stage = MultiHop(Schedule("step", 0.5, 0.1, 0.3), limit=limit)
    active, rows = stage.first(layout, layers), 0
    for layer in range(layers):
        rows += active.numel()
        active = stage.narrow(layer, active, MatrixProbe(layout, *random_weights(layout, layer), layer))
    return rows / (layout.rows * layers)


@pytest.mark.parametrize("query", [4, 30])
def test_a_limit_bounds_the_share_of_the_whole_prompt(query: int) -> None:
    layout, layers = make_layout([1] * 100, context=0, query=query), 10
    least = query / layout.rows
    for limit in (0.2, 0.3, 0.4):
        room = limit - least >= 100 / (layout.rows * layers)  # for layer 0
        share = computed(layout, layers, limit)
        assert share == pytest.approx(limit if room else least, abs=0.01), limit
    assert computed(layout, layers, 1.0) == computed(layout, layers, None)


def test_exact_segments_neither_compete_nor_count() -> None:
    layout = mark_exact(make_layout([2, 3, 2]), 0)
    weights = torch.zeros(11, 11, dtype=torch.float64)
    weights[8:, 1:3], weights[8:, 6:8] = 0.4, 0.1  # the query attends most to the exact segment
    stage = MultiHop(Schedule("step", 0.5, 1.0), max_hops=0)
    active = stage.first(layout, 3)
    assert active.tolist() == [*range(3, 11)]
    assert stage.narrow(0, active, MatrixProbe(layout, weights, weights, 0)).tolist() == [*range(6, 11)]


def test_full_and_none() -> None:
    layout = make_layout([2, 3], fresh=[1])
    probe = MatrixProbe(layout, *random_weights(layout, 0), 0)
    everything, fresh = Full().first(layout, 4), Nothing().first(layout, 4)
    assert everything.tolist() == list(range(9)) and fresh.tolist() == [3, 4, 5, 6, 7, 8]
    assert Full().narrow(0, everything, probe) is everything and Nothing().narrow(0, fresh, probe) is fresh
