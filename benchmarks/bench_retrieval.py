"""Benchmark of retrieval: selection of a prompt's segments by their embeddings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from benchmarks.house import QUERY, House
from memory.retrieval.embedding import Embedding

DIM = 384  # dimension of an embedding
BUDGET = 40


@pytest.mark.parametrize("groups", ["dynamic", "static"])
@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_embedding(
    benchmark: BenchmarkFixture, note: Note, house_of: Callable[[int], House], segments: int, groups: str
) -> None:
    """Floor (see `conftest`): every embedding is read once and multiplied with that of the query.

    If all groups of segments are static, few of them fit into the remaining budget, so the selection tries many.
    """
    store = house_of(segments).store
    if groups == "static":
        store.step += store.graph.grouping.window
    else:
        for segment in list(store):
            store.put(segment.id, segment.category, segment.text.removesuffix("\n") + ".\n", segment.parent)
    store.graph.update(store)
    selection = benchmark(Embedding().select, QUERY, store, BUDGET)
    assert 0 < len(selection) <= BUDGET and selection[-1] == "agent"
    assert any(group.static for group in store.graph.groups.values()) == (groups == "static")
    note(2 * segments * DIM, 4 * segments * DIM, segments=segments, groups=groups)
