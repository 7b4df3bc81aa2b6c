from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import BRIDGE, Layout, Transfer
from memory.stages import Loading
from tests.memory.layouts import make_layout

LAYERS = 6


def follow(loading: Loading, layout: Layout, actives: list[list[int]]) -> tuple[np.ndarray, list[list[Transfer]]]:
    """Count the transfers of each (layer, row); check that each layer has its rows in time."""
    loaded = np.zeros((LAYERS, layout.rows), int)
    calls = []
    for layer, active in enumerate(actives):
        calls.append(loading.schedule(layout, layer, torch.tensor(active, dtype=torch.long), LAYERS))
        for transfer in calls[-1]:
            start = layout.placements[transfer.placement].start
            assert transfer.first < transfer.last <= LAYERS and transfer.first >= layer
            loaded[transfer.first : transfer.last, start + transfer.rows[0] : start + transfer.rows[1]] += 1
        resting = (layout.block_of >= 0) & ~np.isin(np.arange(layout.rows), active)
        assert (loaded[layer][resting] > 0).all()
    return loaded, calls


@given(st.data())
@settings(max_examples=60)
def test_every_inactive_row_is_loaded_once(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), max_size=6))
    fresh = data.draw(st.sets(st.sampled_from(range(len(lengths))))) if lengths else set()
    layout = make_layout(lengths, fresh=sorted(fresh))
    active = list(range(layout.context, layout.rows))
    must = set(layout.fresh.nonzero()[:, 0].tolist())
    actives = []
    for _ in range(LAYERS):
        actives.append(active)
        active = [row for row in active if row in must or data.draw(st.booleans())]
    for loading in (Serial(), NextLayer(), LayerBalanced()):
        loaded, calls = follow(loading, layout, actives)
        assert loaded.max(initial=0) <= 1
        for rows, call in zip(actives, calls, strict=True):
            for transfer in call:  # active rows are loaded only within gaps
                start = layout.placements[transfer.placement].start
                assert not {start + transfer.rows[0], start + transfer.rows[1] - 1} & set(rows)
        again, _ = follow(loading, layout, actives)  # a stage is reused for the next prompt
        assert np.array_equal(loaded, again)


def test_schedules_of_the_stages() -> None:
    layout = make_layout([2, 3])
    _, calls = follow(Serial(), layout, [[6, 7, 8]] * LAYERS)
    assert calls[3] == [Transfer(0, 3, 4, (0, 2)), Transfer(1, 3, 4, (0, 3))]
    active = [[1, 2, 6, 7, 8]] * 2 + [[6, 7, 8]] * (LAYERS - 2)
    _, calls = follow(NextLayer(), layout, active)
    assert calls[0] == [Transfer(1, 0, 1, (0, 3)), Transfer(1, 1, 2, (0, 3))]
    assert calls[2] == [Transfer(0, 2, 3, (0, 2)), Transfer(0, 3, 4, (0, 2)), Transfer(1, 3, 4, (0, 3))]
    _, calls = follow(LayerBalanced(), layout, active)
    assert calls == [[Transfer(1, 0, LAYERS, (0, 3))], [], [Transfer(0, 2, LAYERS, (0, 2))], *[[]] * (LAYERS - 3)]


@pytest.mark.parametrize(
    ("gap", "runs"), [(BRIDGE - 1, [(0, BRIDGE + 1)]), (BRIDGE, [(0, 1), (BRIDGE + 1, BRIDGE + 2)])]
)
def test_small_gaps_are_loaded_along(gap: int, runs: list[tuple[int, int]]) -> None:
    layout = make_layout([gap + 2, 3])
    between = list(range(layout.context + 1, layout.context + 1 + gap))
    _, calls = follow(Serial(), layout, [[*between, *range(layout.query - 3, layout.rows)]] * LAYERS)
    assert calls[0] == [Transfer(0, 0, 1, rows) for rows in runs]


def test_a_gap_that_was_loaded_is_not_loaded_again() -> None:
    """Row 5 was loaded a layer ahead; rows 4 and 6, of the same unit, are dropped later."""
    layout, actives = make_layout([2, 3]), [[1, 2, 3, 5, 6, 7, 8], *[[6, 7, 8]] * (LAYERS - 1)]
    loaded, calls = follow(NextLayer(), layout, actives)
    assert calls[1][:3] == [Transfer(0, 1, 2, (0, 2)), Transfer(1, 1, 2, (0, 1)), Transfer(1, 1, 2, (2, 3))]
    assert loaded.max() == 1
