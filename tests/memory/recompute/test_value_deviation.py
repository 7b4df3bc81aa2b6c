from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.prompt.layout import Layout
from memory.recompute.value_deviation import ValueDeviation
from tests.memory.layouts import make_layout


class Drift:
    """Cached keys and values are 0; the fresh ones of a row differ by what is written here."""

    def __init__(self, keys: dict[int, float], values: dict[int, float]) -> None:
        self.keys, self.values = keys, values
        self.asked: list[int] = []

    def fresh_kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        self.asked.append(layer)
        written = [{"k": self.keys, "v": self.values}[kind] for kind in kinds]
        drifts = (torch.tensor([by.get(row, 0.0) for row in rows.tolist()]) for by in written)
        return tuple(drift[None, :, None].expand(2, -1, 4) for drift in drifts)

    def cached_kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(2, rows.numel(), 4) for _ in kinds)


LAYOUT = make_layout([4, 2, 4], fresh=[1])  # rows 1..4, 5..6 fresh, 7..10 behind one context row, then 11..13
FRESH = [5, 6, 11, 12, 13]
KEYS, VALUES = {2: 3.0, 8: 1.0}, {9: 2.0, 8: 1.9, 5: 9.0}


def chosen(stage: ValueDeviation, probe: Drift, layout: Layout = LAYOUT, layers: int = 3) -> list[list[int]]:
    """The memory rows still active, layer by layer."""
    active = stage.first(layout, layers)
    found = [active]
    for layer in range(layers - 1):
        active = stage.narrow(layer, active, probe)
        found.append(active)
    assert all(set(FRESH) <= set(rows.tolist()) for rows in found)
    return [[row for row in rows.tolist() if row not in FRESH] for rows in found]


@pytest.mark.parametrize(("kind", "rows"), [("v", [8, 9]), ("k", [2, 8]), ("kv", [2, 8])])
def test_the_kinds_of_deviation(kind: str, rows: list[int]) -> None:
    found = chosen(ValueDeviation(0.25, kind, "single"), Drift(KEYS, VALUES))
    assert found == [[1, 2, 3, 4, 7, 8, 9, 10], rows, rows]


def test_a_single_choice_looks_once_and_a_gradual_one_where_fewer_rows_stay() -> None:
    once, often = Drift(KEYS, VALUES), Drift(KEYS, VALUES)
    chosen(ValueDeviation(0.25, selection="single"), once, layers=5)
    falling = chosen(ValueDeviation(0.25), often, layers=5)
    assert once.asked == [1] and often.asked == [1, 2, 3]
    assert [len(rows) for rows in falling] == [8, 4, 3, 1, 1]
    assert falling[-1] == [9]


def test_ties_go_to_the_earlier_row() -> None:
    assert chosen(ValueDeviation(0.5), Drift({}, {}))[1:] == [[1, 2, 3, 4, 7, 8, 9, 10][:n] for n in (8, 1)]
    assert chosen(ValueDeviation(0.5, selection="single"), Drift({}, {}))[-1] == [1, 2, 3, 4]


def test_all_none_and_no_memory_ask_nothing() -> None:
    for stage, rest in ((ValueDeviation(1.0), [1, 2, 3, 4, 7, 8, 9, 10]), (ValueDeviation(0.0), [])):
        probe = Drift(KEYS, VALUES)
        assert chosen(stage, probe)[-1] == rest and not probe.asked
    empty, stage = make_layout([]), ValueDeviation()
    active = stage.first(empty, 3)
    assert stage.narrow(0, active, Drift({}, {})) is active


def test_exact_rows_neither_compete_nor_count() -> None:
    first, *others = LAYOUT.placements
    layout = replace(LAYOUT, placements=(replace(first, exact=True), *others))
    found = chosen(ValueDeviation(0.5, selection="single"), Drift({1: 9.0}, {2: 9.0} | VALUES), layout)
    assert found == [[7, 8, 9, 10], [8, 9], [8, 9]]


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"ratio": 1.5}, "ratio=1.5 is the share"),
        ({"ratio": -0.1}, "use 0 to 1"),
        ({"deviation": "q"}, "deviation='q' is unknown"),
        ({"selection": "twice"}, "gradual, single"),
        ({"shape": "cubic"}, "shape='cubic'"),
    ],
)
def test_bad_knobs_are_sentences(knobs: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ValueDeviation(**knobs)
