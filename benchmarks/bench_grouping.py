"""Benchmark of grouping: update of the segment graph after a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from benchmarks.house import House

DIM = 384  # dimension of an embedding


@pytest.mark.parametrize("changed", [1, 16])
@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_grouping(
    benchmark: BenchmarkFixture, note: Note, house_of: Callable[[int], House], segments: int, changed: int
) -> None:
    """Floor (see `conftest`): each embedding is read once and multiplied with that of each changed segment."""
    house = house_of(segments)
    benchmark.pedantic(house.store.graph.update, (house.store,), setup=lambda: house.change(changed), rounds=60)
    assert len(house.store.graph.scores("mug").ids) == len(house.store) == segments
    note(2 * changed * segments * DIM, 4 * segments * DIM, segments=segments, changed=changed)


@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_grouping_of_a_whole_house(benchmark: BenchmarkFixture, note: Note, segments: int) -> None:
    """Measure a cold start: all segments are new, and each is compared with the previous ones."""

    def cold() -> tuple[tuple[object], dict[str, object]]:
        house.store.graph.clear()
        return (house.store,), {}

    house = House(segments)
    benchmark.pedantic(house.store.graph.update, setup=cold, rounds=3)
    assert sum(len(group.members) for group in house.store.graph.groups.values()) == segments
    note(segments**2 * DIM, 4 * segments * DIM, segments=segments, changed=segments)
