from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.prompt.layout import Layout
from memory.recompute.sparse_query import SparseQuery
from tests.memory.layouts import make_layout


class Masses:
    """Attention on each row is written here; who asked is noted."""

    def __init__(self, layout: Layout, masses: dict[int, float]) -> None:
        self.masses = torch.zeros(layout.rows)
        for row, mass in masses.items():
            self.masses[row] = mass
        self.sources: list[list[int]] = []

    def mass_on_rows(self, sources: torch.Tensor) -> torch.Tensor:
        self.sources.append(sources.tolist())
        return self.masses


LAYOUT = make_layout([6, 2, 8], fresh=[1])  # rows 1..6, 7..8 fresh, 9..16 behind one context row, then 17..19
FRESH = [7, 8, 17, 18, 19]


def last(stage: SparseQuery, probe: Masses, layout: Layout = LAYOUT, layers: int = 5) -> list[int]:
    """The reused rows that stay, of those active in the dense layers."""
    active = stage.first(layout, layers)
    for layer in range(layers - 1):
        active = stage.narrow(layer, active, probe)
    assert set(layout.fresh.nonzero()[:, 0].tolist()) <= set(active.tolist())
    return [row for row in active.tolist() if layout.reused[row]]


def test_key_rows_are_the_top_of_the_whole_prompt() -> None:
    masses = {0: 9.0, 8: 8.0, 3: 7.0, 10: 6.0, 11: 5.0}  # a context row and a fresh row take two of the four places
    stage, probe = SparseQuery(share=0.25, overflow=0), Masses(LAYOUT, masses)
    assert last(stage, probe) == [3, 10]
    assert probe.sources == [FRESH]
    assert last(replace(stage, over="reused"), Masses(LAYOUT, masses | {12: 4.0})) == [3, 10, 11, 12]


def test_ties_go_to_the_earlier_row() -> None:
    assert last(SparseQuery(share=0.25, overflow=0, over="reused"), Masses(LAYOUT, {})) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("block", "overflow", "near"), [(2, 1, [5, 6, 9, 10, 15, 16]), (1, 3, [4, 5, 6, 9, 10, 11, 14, 15, 16]), (9, 0, [])]
)
def test_overflow_reaches_to_both_sides_of_new_text(block: int, overflow: int, near: list[int]) -> None:
    probe = Masses(LAYOUT, {})
    assert last(SparseQuery(share=0.0, block=block, overflow=overflow), probe) == near
    assert not probe.sources, "nothing is asked when no key rows are wanted"


@pytest.mark.parametrize(("boundary", "layers", "dense"), [(0.0, 10, 1), (0.2, 10, 2), (0.5, 5, 2), (1.0, 4, 4)])
def test_dense_layers(boundary: float, layers: int, dense: int) -> None:
    stage = SparseQuery(boundary, overflow=0, share=0.0)
    active, sizes = stage.first(LAYOUT, layers), []
    for layer in range(layers):
        sizes.append(active.numel())
        active = stage.narrow(layer, active, Masses(LAYOUT, {}))
    assert sizes == [19] * dense + [5] * (layers - dense)


BARE = make_layout([5, 3, 2, 4], fresh=[1], query=1)  # rows 1..5, 6..8 fresh, 9..14, then the last row


def test_a_tail_of_reused_rows_stays_whatever_blocks_hold_it() -> None:
    stage = SparseQuery(share=0.0, overflow=0, tail=5)
    assert last(stage, Masses(BARE, {}), BARE) == [10, 11, 12, 13, 14]
    assert last(replace(stage, tail=64), Masses(BARE, {}), BARE) == [9, 10, 11, 12, 13, 14]
    assert last(replace(stage, tail=0), Masses(BARE, {}), BARE) == []
    assert last(stage, Masses(LAYOUT, {})) == [], "the prompt ends in new text"
    whole = make_layout([5, 3], fresh=[1], query=1)
    assert last(stage, Masses(whole, {}), whole) == [], "the row before the last is new"


def test_the_tail_may_vote() -> None:
    probe, fresh = Masses(BARE, {2: 1.0}), [6, 7, 8, 15]
    stage = SparseQuery(share=0.1, overflow=0, tail=2)
    assert last(stage, probe, BARE) == [2, 13, 14]
    last(replace(stage, probe_tail=True), probe, BARE)
    assert probe.sources == [fresh, [6, 7, 8, 13, 14, 15]]


def test_exact_rows_stay_out() -> None:
    first, *others = LAYOUT.placements
    layout = replace(LAYOUT, placements=(replace(first, exact=True), *others))
    stage = SparseQuery(share=0.25, block=2)
    assert stage.first(layout, 5).tolist() == [*range(7, 20)]
    probe = Masses(layout, {3: 2.0, 12: 1.0})  # two places, and an exact row takes one
    assert last(stage, probe, layout) == [9, 10, 12, 15, 16]


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"boundary": 1.5}, "boundary=1.5 is a share"),
        ({"share": -0.1}, "share=-0.1 is a share"),
        ({"block": 0}, "block=0 is too small: use 1"),
        ({"overflow": -1}, "overflow=-1"),
        ({"tail": -1}, "tail=-1"),
        ({"over": "new"}, "all, reused"),
    ],
)
def test_bad_knobs_are_sentences(knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SparseQuery(**knobs)
