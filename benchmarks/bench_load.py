"""Benchmark of loading: transfer of segments' KV blocks into the prompt's cache, while only the query is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from memory.engine.base import Engine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import Layout
from memory.recompute.none import Nothing
from memory.stages import Loading

STAGES = [Serial, NextLayer, LayerBalanced]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("segments", [40, 160])
def test_load(
    benchmark: BenchmarkFixture,
    note: Note,
    engine: Engine,
    stored: Callable[[int], Layout],
    segments: int,
    stage: Callable[[], Loading],
) -> None:
    """Floor (see `conftest`): every stored key and value is read once and written once.

    The time is the whole prefill, including the query's rows; ``waited_ms`` is its time spent waiting for transfers.
    """
    layout = stored(segments)
    result = benchmark(lambda: engine.prefill(layout, Nothing(), stage()))
    nbytes = sum(placement.block.nbytes for placement in layout.placements if placement.block)
    assert result.trace.loaded_bytes == nbytes
    note(loaded=nbytes, segments=segments, rows=layout.rows, waited_ms=1e3 * result.trace.timings["load"])
