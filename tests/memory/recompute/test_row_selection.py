"""Recomputation of single rows: first tokens of units, deviating values, and sparse queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from memory.prompt.layout import Layout
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from tests.memory.layouts import make_layout, mark_exact

FOUR_UNITS = make_layout([4, 3, 2, 5], fresh=[2])  # context: row 0; units: rows 1-4, 5-7, 8-9, 10-14
QUERY = [15, 16, 17]


@pytest.mark.parametrize(("stage", "layout", "rows"), [
    (FirstTokens(2), FOUR_UNITS, [1, 2, 5, 6, 8, 9, 10, 11]),  # the first unit was encoded without the context
    (FirstTokens(2), mark_exact(FOUR_UNITS, 0), [5, 6, 8, 9, 10, 11]),
    (FirstTokens(16), mark_exact(FOUR_UNITS, 0), range(5, 15)),
    (FirstTokens(0, 1), FOUR_UNITS, [4, 7, 8, 9, 14]),
    (FirstTokens(1, 9), FOUR_UNITS, range(1, 15)),
    (FirstTokens(1, 1), mark_exact(FOUR_UNITS, 1), [1, 4, 8, 9, 10, 14]),
    (FirstTokens(1), make_layout([2, 2, 2], fresh=[0]), [1, 2, 3, 5]),  # a fresh first unit counts as the first
    (FirstTokens(0), FOUR_UNITS, [8, 9]),  # full reuse
])  # fmt: skip
def test_first_and_last_tokens_of_units(stage: FirstTokens, layout: Layout, rows: Sequence[int]) -> None:
    assert stage.first(layout, 4).tolist() == [*rows, *range(layout.query, layout.rows)]


class Drift:
    """Probe whose cached keys and values are 0; fresh ones are given by row."""

    def __init__(self, keys: dict[int, float], values: dict[int, float]) -> None:
        self.keys, self.values = keys, values
        self.queried_layers: list[int] = []

    def fresh_kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        self.queried_layers.append(layer)
        drifts_by_kind = [{"k": self.keys, "v": self.values}[kind] for kind in kinds]
        drifts = (torch.tensor([by.get(row, 0.0) for row in rows.tolist()]) for by in drifts_by_kind)
        return tuple(drift[None, :, None].expand(2, -1, 4) for drift in drifts)

    def cached_kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(2, rows.numel(), 4) for _ in kinds)


LAYOUT = make_layout([4, 2, 4], fresh=[1])  # context: row 0; rows 1-4, fresh 5-6, 7-10; query 11-13
FRESH = [5, 6, 11, 12, 13]
KEYS, VALUES = {2: 3.0, 8: 1.0}, {9: 2.0, 8: 1.9, 5: 9.0}


def memory_rows(stage: ValueDeviation, probe: Drift, layout: Layout = LAYOUT, layers: int = 3) -> list[list[int]]:
    """Return the active memory rows of each layer."""
    active = stage.first(layout, layers)
    layers_rows = [active]
    for layer in range(layers - 1):
        active = stage.narrow(layer, active, probe)
        layers_rows.append(active)
    assert all(set(FRESH) <= set(rows.tolist()) for rows in layers_rows)
    return [[row for row in rows.tolist() if row not in FRESH] for rows in layers_rows]


@pytest.mark.parametrize(("kind", "rows"), [("v", [8, 9]), ("k", [2, 8]), ("kv", [2, 8])])
def test_kinds_of_deviation(kind: str, rows: list[int]) -> None:
    layers_rows = memory_rows(ValueDeviation(0.25, kind, "single"), Drift(KEYS, VALUES))
    assert layers_rows == [[1, 2, 3, 4, 7, 8, 9, 10], rows, rows]


def test_a_single_selection_compares_one_layer_and_a_gradual_one_each() -> None:
    once, often = Drift(KEYS, VALUES), Drift(KEYS, VALUES)
    memory_rows(ValueDeviation(0.25, selection="single"), once, layers=5)
    falling = memory_rows(ValueDeviation(0.25), often, layers=5)
    assert once.queried_layers == [1] and often.queried_layers == [1, 2, 3]
    assert [len(rows) for rows in falling] == [8, 4, 3, 1, 1] and falling[-1] == [9]


def test_ties_of_deviations_go_to_the_earlier_row() -> None:
    assert memory_rows(ValueDeviation(0.5), Drift({}, {}))[1:] == [[1, 2, 3, 4, 7, 8, 9, 10][:n] for n in (8, 1)]
    assert memory_rows(ValueDeviation(0.5, selection="single"), Drift({}, {}))[-1] == [1, 2, 3, 4]


def test_trivial_selections_compare_no_layer() -> None:
    for stage, rest in ((ValueDeviation(1.0), [1, 2, 3, 4, 7, 8, 9, 10]), (ValueDeviation(0.0), [])):
        probe = Drift(KEYS, VALUES)
        assert memory_rows(stage, probe)[-1] == rest and not probe.queried_layers
    empty, stage = make_layout([]), ValueDeviation()
    active = stage.first(empty, 3)
    assert stage.narrow(0, active, Drift({}, {})) is active


def test_exact_rows_are_neither_selected_nor_counted() -> None:
    layout = mark_exact(LAYOUT, 0)
    layers_rows = memory_rows(ValueDeviation(0.5, selection="single"), Drift({1: 9.0}, {2: 9.0} | VALUES), layout)
    assert layers_rows == [[7, 8, 9, 10], [8, 9], [8, 9]]


class Masses:
    """Probe with given attention per row that records the query rows."""

    def __init__(self, layout: Layout, masses: dict[int, float]) -> None:
        self.masses = torch.zeros(layout.rows)
        for row, mass in masses.items():
            self.masses[row] = mass
        self.sources: list[list[int]] = []

    def mass_on_rows(self, sources: torch.Tensor) -> torch.Tensor:
        self.sources.append(sources.tolist())
        return self.masses


NEW_BETWEEN = make_layout([6, 2, 8], fresh=[1])  # context: row 0; rows 1-6, fresh 7-8, 9-16; query 17-19
NEW_ROWS = [7, 8, 17, 18, 19]


def last(stage: SparseQuery, probe: Masses, layout: Layout = NEW_BETWEEN, layers: int = 5) -> list[int]:
    """Return the reused rows that are active in the last layer."""
    active = stage.first(layout, layers)
    for layer in range(layers - 1):
        active = stage.narrow(layer, active, probe)
    assert set(layout.fresh.nonzero()[:, 0].tolist()) <= set(active.tolist())
    return [row for row in active.tolist() if layout.reused[row]]


def test_key_rows_are_the_best_of_the_whole_prompt() -> None:
    masses = {0: 9.0, 8: 8.0, 3: 7.0, 10: 6.0, 11: 5.0}  # a context row and a fresh row take two of the four places
    stage, probe = SparseQuery(share=0.25, overflow=0), Masses(NEW_BETWEEN, masses)
    assert last(stage, probe) == [3, 10] and probe.sources == [NEW_ROWS]
    assert last(replace(stage, over="reused"), Masses(NEW_BETWEEN, masses | {12: 4.0})) == [3, 10, 11, 12]


def test_ties_of_attention_go_to_the_earlier_row() -> None:
    assert last(SparseQuery(share=0.25, overflow=0, over="reused"), Masses(NEW_BETWEEN, {})) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("block", "overflow", "near"), [(2, 1, [5, 6, 9, 10, 15, 16]), (1, 3, [4, 5, 6, 9, 10, 11, 14, 15, 16]), (9, 0, [])]
)
def test_overflow_extends_to_both_sides_of_new_text(block: int, overflow: int, near: list[int]) -> None:
    probe = Masses(NEW_BETWEEN, {})
    assert last(SparseQuery(share=0.0, block=block, overflow=overflow), probe) == near
    assert not probe.sources, "without key rows no attention is needed"


@pytest.mark.parametrize(("boundary", "layers", "dense"), [(0.0, 10, 1), (0.2, 10, 2), (0.5, 5, 2), (1.0, 4, 4)])
def test_dense_layers(boundary: float, layers: int, dense: int) -> None:
    stage = SparseQuery(boundary, overflow=0, share=0.0)
    active, sizes = stage.first(NEW_BETWEEN, layers), []
    for layer in range(layers):
        sizes.append(active.numel())
        active = stage.narrow(layer, active, Masses(NEW_BETWEEN, {}))
    assert sizes == [19] * dense + [5] * (layers - dense)


BARE = make_layout([5, 3, 2, 4], fresh=[1], query=1)  # rows 1-5, fresh 6-8, 9-14, and the last row


def test_the_last_reused_rows_stay_active() -> None:
    stage = SparseQuery(share=0.0, overflow=0, tail=5)
    assert last(stage, Masses(BARE, {}), BARE) == [10, 11, 12, 13, 14]
    assert last(replace(stage, tail=64), Masses(BARE, {}), BARE) == [9, 10, 11, 12, 13, 14]
    assert last(replace(stage, tail=0), Masses(BARE, {}), BARE) == []
    assert last(stage, Masses(NEW_BETWEEN, {})) == [], "the prompt ends in new text"
    whole = make_layout([5, 3], fresh=[1], query=1)
    assert last(stage, Masses(whole, {}), whole) == [], "the row before the last is new"


def test_the_last_reused_rows_may_be_query_rows() -> None:
    probe, fresh = Masses(BARE, {2: 1.0}), [6, 7, 8, 15]
    stage = SparseQuery(share=0.1, overflow=0, tail=2)
    assert last(stage, probe, BARE) == [2, 13, 14]
    last(replace(stage, probe_tail=True), probe, BARE)
    assert probe.sources == [fresh, [6, 7, 8, 13, 14, 15]]


def test_exact_rows_are_not_recomputed() -> None:
    layout = mark_exact(NEW_BETWEEN, 0)
    stage = SparseQuery(share=0.25, block=2)
    assert stage.first(layout, 5).tolist() == [*range(7, 20)]
    probe = Masses(layout, {3: 2.0, 12: 1.0})  # an exact row takes one of the two places
    assert last(stage, probe, layout) == [9, 10, 12, 15, 16]
