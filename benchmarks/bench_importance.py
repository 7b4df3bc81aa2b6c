"""Importance: KEEP's choice of the next layer's rows, with everything it asks the probe for."""

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

Question = tuple[int, torch.Tensor, LayerProbe]


@dataclass
class Overheard(MultiHop):
    """Keeps what it is asked, from before it answers."""

    questions: list[Question] = field(default_factory=list)

    def narrow(self, layer: int, active: torch.Tensor, probe: LayerProbe) -> torch.Tensor:
        asked = layer, active, copy.copy(probe)
        rows = super().narrow(layer, active, probe)
        if rows.numel() < active.numel():
            self.questions.append(asked)
        return rows


def first_choice(engine: Engine, layout: Layout) -> Question:
    """The first question whose answer leaves rows out."""
    stage = Overheard()
    engine.prefill(layout, stage, LayerBalanced())
    return stage.questions[0]


@pytest.mark.parametrize("segments", [40, 160])
def test_importance(
    benchmark: BenchmarkFixture, note: Note, engine: Engine, stored: Callable[[int], Layout], segments: int
) -> None:
    """Floor: the query's and the chosen rows' scores with all keys, once; or reading the weights if they were kept."""
    layout = stored(segments)
    layer, active, probe = first_choice(engine, layout)

    def ask() -> tuple[tuple[MultiHop, LayerProbe], dict[str, object]]:
        stage = MultiHop()
        stage.first(layout, engine.info.layers)
        return (stage, copy.copy(probe)), {}

    with torch.inference_mode():
        rows = benchmark.pedantic(lambda stage, probe: stage.narrow(layer, active, probe), setup=ask, rounds=40)
    assert 0 < rows.numel() < active.numel()
    _, heads, _, dim = probe.attention.query.shape
    kept = sum(weights.nbytes for weights in probe.attention.weights)
    scores = 0 if kept else 2 * heads * dim * rows.numel() * layout.rows
    note(scores, kept, segments=segments, rows=layout.rows, active=active.numel(), layer=layer)
