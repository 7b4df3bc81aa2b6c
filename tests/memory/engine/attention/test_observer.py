"""Attention observer: its records equal those of the cache's rows after appends, drops, cuts and failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.engine.attention.kernels import AttentionParams, LayerAttention, MaskBlock
from memory.engine.attention.observer import AttentionObserver
from tests import beside

HEADS, LAYERS, DIM, RECENT = 2, 3, 4, 5
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "token", "fail", "drop", "cut", "save"]), st.integers(0, 99)),
    min_size=5,
    max_size=25,
)


class Record:
    """Observer, and the queries and attention that it should have recorded, by position of the row."""

    def __init__(self) -> None:
        self.observer = AttentionObserver(RECENT, mass=True)
        self.generator = torch.Generator().manual_seed(0)
        self.live: list[int] = []
        self.next = self.settled = 0  # positions so far, and at the end of the last turn
        self.queries: dict[int, torch.Tensor] = {}  # (LAYERS, HEADS, DIM)
        self.attention: dict[int, dict[int, float]] = {}  # from each row to the rows that it sees

    def append(self, count: int, layers: int = LAYERS) -> None:
        """Run a pass over ``count`` rows; it fails after ``layers`` layers if the model has more."""
        new = range(self.next, self.next + count)
        places = torch.tensor([*self.live, *new])
        blocks = list(self.blocks(count, places.numel()))
        queries = torch.randn(LAYERS, HEADS, count, DIM, generator=self.generator)
        with self.observer.observing(places, count):
            total = sum(self.look(layer, queries[layer], blocks, places.numel()) for layer in range(layers))
            if layers < LAYERS:
                raise MemoryError
        for row, place in enumerate(new):
            self.queries[place] = queries[:, :, row]
            self.attention[place] = dict(zip(places.tolist(), total[row].tolist(), strict=True))
        self.live += new
        self.next += count

    def blocks(self, count: int, keys: int) -> Iterator[MaskBlock]:
        """Yield two blocks with prefix columns and padding."""
        for q0, q1 in ((0, count // 2), (count // 2, count)):
            if q0 < q1:
                yield MaskBlock(q0, q1, keys // 2, keys + 2, None, keys // 3)

    def look(self, layer: int, query: torch.Tensor, blocks: list[MaskBlock], keys: int) -> torch.Tensor:
        """Record a layer's attention, of each row to earlier rows and itself; returns it (rows, keys)."""
        count, collector = query.shape[1], self.observer.collector(blocks)
        weights = torch.rand(HEADS, count, keys, generator=self.generator).tril(keys - count)
        weights[:, :, blocks[0].prefix : blocks[0].k0] = 0
        for block in blocks:
            rows = weights[:, block.q0 : block.q1]
            padding = torch.ones(*rows.shape[:2], 2)
            collector.append(torch.cat([rows[..., : block.prefix], rows[..., block.k0 :], padding], 2))
        attention = LayerAttention(layer, query[None], None, None, AttentionParams(1.0), blocks)
        self.observer.record(attention, collector)
        return weights.sum(0)

    def fail(self, number: int) -> None:
        with pytest.raises(MemoryError):
            self.append(number % 5 + 1, layers=number % LAYERS)

    def drop(self, number: int) -> None:
        keep = torch.rand(len(self.live), generator=torch.Generator().manual_seed(number)) < 0.7
        self.live = [place for place, stays in zip(self.live, keep.tolist(), strict=True) if stays]
        self.observer.drop(torch.tensor(self.live, dtype=torch.long))

    def cut(self, number: int) -> None:
        """Cut back to the end of a turn, or to any position."""
        position = self.settled if number % 2 else self.next * number // 100
        self.observer.cut(position)
        self.live = [place for place in self.live if place < position]
        self.queries = {place: row for place, row in self.queries.items() if place < position}
        self.attention = {place: row for place, row in self.attention.items() if place < position}
        self.next, self.settled = position, min(self.settled, position)

    def save_queries(self) -> None:
        self.observer.save_queries()
        self.settled = self.next

    def check(self) -> None:
        expected = [sum(row.get(place, 0.0) for row in self.attention.values()) for place in self.live]
        result = self.observer.mass(torch.tensor(self.live, dtype=torch.long))
        torch.testing.assert_close(result, torch.tensor(expected), rtol=1e-5, atol=1e-5)
        places = self.observer.places.tolist()
        assert set(places) <= set(self.queries) and places == sorted(places) and len(places) <= RECENT
        for layer, queries in self.observer.queries.items():
            assert queries.shape[1] == len(places)
            for row, place in enumerate(places):
                assert torch.equal(queries[:, row], self.queries[place][layer])


@given(steps=STEPS)
@settings(max_examples=150)
def test_removed_and_failed_rows_leave_no_record(steps: list[tuple[str, int]]) -> None:
    record = Record()
    record.append(7)
    for step, number in steps:
        if step in ("append", "token"):
            record.append(number % 9 + 1 if step == "append" else 1)
        elif step == "save":
            record.save_queries()
        else:
            getattr(record, step)(number)
        record.check()


@given(rows=st.integers(1, 20), turn=st.integers(1, 9))
@settings(max_examples=40)
def test_a_cut_to_the_end_of_a_turn_restores_its_last_queries(rows: int, turn: int) -> None:
    record = Record()
    record.append(turn)
    record.save_queries()
    for _ in range(rows):
        record.append(1)
    record.cut(1)
    record.check()
    assert record.observer.places.tolist() == list(range(turn))[-RECENT:]


def test_attention_is_float32_while_another_thread_loads_a_model() -> None:
    observer, places = AttentionObserver(RECENT, mass=True), torch.arange(7)
    with beside.loading():
        with observer.observing(places, 7):
            pass
        observer.drop(torch.arange(0, 7, 2))
        assert [attention.weights.dtype for attention in observer._attention] == [torch.float32]
        assert observer.mass(torch.arange(0, 7, 2)).dtype == torch.float32
