"""Retrieval: the choice of a prompt's segments by their embeddings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from benchmarks.house import QUERY, House
from memory.retrieval.embedding import Embedding

DIM = 384  # of an embedding
BUDGET = 40


@pytest.mark.parametrize("groups", ["dynamic", "static"])
@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_embedding(
    benchmark: BenchmarkFixture, note: Note, house_of: Callable[[int], House], segments: int, groups: str
) -> None:
    """Floor: every embedding is read once, for its product with the query's.

    Where all groups are static hardly anything fits into the last places of a budget, and many are looked at.
    """
    store = house_of(segments).store
    if groups == "static":
        store.step += store.graph.grouping.window
    else:
        for segment in list(store):
            store.put(segment.id, segment.category, segment.text.removesuffix("\n") + ".\n", segment.parent)
    store.graph.update(store)
    chosen = benchmark(Embedding().select, QUERY, store, BUDGET)
    assert 0 < len(chosen) <= BUDGET and chosen[-1] == "agent"
    assert any(group.static for group in store.graph.groups.values()) == (groups == "static")
    note(2 * segments * DIM, 4 * segments * DIM, segments=segments, groups=groups)
