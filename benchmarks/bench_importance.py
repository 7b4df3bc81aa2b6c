"""Benchmark of importance: KEEP's selection of the next layer's rows, including the attention scores it needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from memory.engine.base import Engine
from memory.engine.transformers.probe import LayerProbe
from memory.loading.layer_balanced import LayerBalanced
from memory.prompt.layout import Layout
from memory.recompute.multi_hop import MultiHop

Call = tuple[int, torch.Tensor, LayerProbe]


@dataclass
class RecordingMultiHop(MultiHop):
    """Multi-hop stage that records the arguments of each call that drops rows."""

    calls: list[Call] = field(default_factory=list)

    def narrow(self, layer: int, active: torch.Tensor, probe: LayerProbe) -> torch.Tensor:
        call = layer, active, copy.copy(probe)  # copied before the probe computes anything
        rows = super().narrow(layer, active, probe)
        if rows.numel() < active.numel():
            self.calls.append(call)
        return rows


def first_selection(engine: Engine, layout: Layout) -> Call:
    """Return the arguments of the first call that drops rows."""
    stage = RecordingMultiHop()
    engine.prefill(layout, stage, LayerBalanced())
    return stage.calls[0]


@pytest.mark.parametrize("segments", [40, 160])
def test_importance(
    benchmark: BenchmarkFixture, note: Note, engine: Engine, stored: Callable[[int], Layout], segments: int
) -> None:
    """Floor (see `conftest`): read the probe's attention weights, or compute those of the returned rows."""
    layout = stored(segments)
    layer, active, probe = first_selection(engine, layout)

    def setup() -> tuple[tuple[MultiHop, LayerProbe], dict[str, object]]:
        stage = MultiHop()
        stage.first(layout, engine.info.layers)
        return (stage, copy.copy(probe)), {}

    with torch.inference_mode():
        rows = benchmark.pedantic(lambda stage, probe: stage.narrow(layer, active, probe), setup=setup, rounds=40)
    assert 0 < rows.numel() < active.numel()
    _, heads, _, dim = probe.attention.query.shape
    weights = sum(tensor.nbytes for tensor in probe.attention.weights)
    scores = 0 if weights else 2 * heads * dim * rows.numel() * layout.rows
    note(scores, weights, segments=segments, rows=layout.rows, active=active.numel(), layer=layer)
