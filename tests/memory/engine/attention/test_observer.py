"""Attention observer: it keeps exactly the rows of the cache, after appends, drops, cuts and failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.engine.attention.kernels import AttentionParams, Block, LayerAttention
from memory.engine.attention.observer import AttentionObserver
from tests import beside

HEADS, LAYERS, DIM, RECENT = 2, 3, 4, 5
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "token", "fail", "drop", "cut", "settle"]), st.integers(0, 99)),
    min_size=5,
    max_size=25,
)


class Record:
    """A observer, and by position what each row was and gave."""

    def __init__(self) -> None:
        self.observer = AttentionObserver(RECENT, mass=True)
        self.generator = torch.Generator().manual_seed(0)
        self.live: list[int] = []
        self.next = self.settled = 0  # positions so far; how many there were when a turn was over
        self.queries: dict[int, torch.Tensor] = {}  # (LAYERS, HEADS, DIM)
        self.given: dict[int, dict[int, float]] = {}

    def append(self, count: int, layers: int = LAYERS) -> None:
        """A pass over ``count`` rows; it fails when so many ``layers`` have seen it."""
        new = range(self.next, self.next + count)
        places = torch.tensor([*self.live, *new])
        blocks = list(self.blocks(count, places.numel()))
        queries = torch.randn(LAYERS, HEADS, count, DIM, generator=self.generator)
        with self.observer.watching(places, count):
            total = sum(self.look(layer, queries[layer], blocks, places.numel()) for layer in range(layers))
            if layers < LAYERS:
                raise MemoryError
        for row, place in enumerate(new):
            self.queries[place] = queries[:, :, row]
            self.given[place] = dict(zip(places.tolist(), total[row].tolist(), strict=True))
        self.live += new
        self.next += count

    def blocks(self, count: int, keys: int) -> Iterator[Block]:
        """Two, with columns in front and padding behind."""
        for q0, q1 in ((0, count // 2), (count // 2, count)):
            if q0 < q1:
                yield Block(q0, q1, keys // 2, keys + 2, None, keys // 3)

    def look(self, layer: int, query: torch.Tensor, blocks: list[Block], keys: int) -> torch.Tensor:
        """(rows, keys) of what one layer's rows give, each to those before it and to itself."""
        count, columns = query.shape[1], self.observer.columns(blocks)
        weights = torch.rand(HEADS, count, keys, generator=self.generator).tril(keys - count)
        weights[:, :, blocks[0].prefix : blocks[0].k0] = 0
        for block in blocks:
            rows = weights[:, block.q0 : block.q1]
            columns.append(
                torch.cat([rows[..., : block.prefix], rows[..., block.k0 :], torch.ones(*rows.shape[:2], 2)], 2)
            )
        attention = LayerAttention(layer, query[None], None, None, AttentionParams(1.0), blocks)
        self.observer.record(attention, columns)
        return weights.sum(0)

    def fail(self, number: int) -> None:
        with pytest.raises(MemoryError):
            self.append(number % 5 + 1, layers=number % LAYERS)

    def drop(self, number: int) -> None:
        keep = torch.rand(len(self.live), generator=torch.Generator().manual_seed(number)) < 0.7
        self.live = [place for place, stays in zip(self.live, keep.tolist(), strict=True) if stays]
        self.observer.drop(torch.tensor(self.live, dtype=torch.long))

    def cut(self, number: int) -> None:
        """Back to the end of a turn, or to anywhere."""
        position = self.settled if number % 2 else self.next * number // 100
        self.observer.cut(position)
        self.live = [place for place in self.live if place < position]
        for rows in (self.queries, self.given):
            for place in [place for place in rows if place >= position]:
                del rows[place]
        self.next, self.settled = position, min(self.settled, position)

    def settle(self) -> None:
        self.observer.settle()
        self.settled = self.next

    def check(self) -> None:
        expected = [sum(row.get(place, 0.0) for row in self.given.values()) for place in self.live]
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
def test_rows_that_were_taken_back_or_never_came_leave_no_trace(steps: list[tuple[str, int]]) -> None:
    visible = Record()
    visible.append(7)
    for step, number in steps:
        if step == "append":
            visible.append(number % 9 + 1)
        elif step == "token":
            visible.append(1)
        elif step == "settle":
            visible.settle()
        else:
            getattr(visible, step)(number)
        visible.check()


@given(rows=st.integers(1, 20), turn=st.integers(1, 9))
@settings(max_examples=40)
def test_behind_a_turn_the_last_queries_are_there_again(rows: int, turn: int) -> None:
    visible = Record()
    visible.append(turn)
    visible.settle()
    for _ in range(rows):
        visible.append(1)
    visible.cut(1)
    visible.check()
    assert visible.observer.places.tolist() == list(range(turn))[-RECENT:]


def test_what_rows_receive_is_float32_whatever_another_thread_loads() -> None:
    observer, places = AttentionObserver(RECENT, mass=True), torch.arange(7)
    with beside.loading():
        with observer.watching(places, 7):
            pass
        observer.drop(torch.arange(0, 7, 2))
        assert [attention.weights.dtype for attention in observer._attention] == [torch.float32]
        assert observer.mass(torch.arange(0, 7, 2)).dtype == torch.float32
