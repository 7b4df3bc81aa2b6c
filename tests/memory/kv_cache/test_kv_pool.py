"""Laws 8 to 10 in slots: whatever is inserted, dropped, shared, forked and freed, every row holds what it was given.

The machine plays requests against a dictionary of what each of their positions must hold. A row is named by its
position and token, and by the rows it has seen, as keys and values are made: exact rows are equal whoever made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keep_agent.errors import CapacityError, ConfigError, ModelError
from memory.engine.attention.kernels import KEY_MULTIPLE
from memory.kv_cache.kv_pool import SENTINEL, KVPool
from memory.kv_cache.paged import MOVED, PagedCache
from memory.kv_cache.slot_prefix_index import SlotPrefixIndex

LAYERS, KV_HEADS, DIM, BLOCK = 2, 1, 3, 2
CAPACITY, PREFIX = 26, 10
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def make_pool(capacity: int | None = CAPACITY) -> KVPool:
    return KVPool(LAYERS, KV_HEADS, DIM, torch.float32, torch.device("cpu"), capacity)


def name(*seen: object) -> int:
    """Of a row, by what it has seen."""
    return int.from_bytes(sha256(repr(seen).encode()).digest()[:8])


def follow(before: Sequence[int], position: int, tokens: Sequence[int]) -> list[int]:
    """Names of rows behind others."""
    rows = list(before)
    for place, token in enumerate(tokens, position):
        rows.append(name(rows, place, token))
    return rows[len(before) :]


@lru_cache(10_000)
def content(row: int) -> torch.Tensor:
    """(2, LAYERS, KV_HEADS, DIM) key and value of the row of a name."""
    return torch.from_numpy(np.random.default_rng(row).standard_normal((2, LAYERS, KV_HEADS, DIM), np.float32))


def contents(rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (LAYERS, KV_HEADS, rows, DIM)."""
    k, v = torch.stack([content(row) for row in rows]).permute(1, 2, 3, 0, 4)
    return k, v


@dataclass
class Expected:
    """A request as it must be."""

    tokens: list[int] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)  # names of rows by position
    exact: int = 0

    def copy(self) -> Expected:
        return Expected(list(self.tokens), dict(self.live), self.exact)

    def cut(self, position: int) -> None:
        del self.tokens[position:]
        self.live = {place: row for place, row in self.live.items() if place < position}
        self.exact = min(self.exact, position)


def write(cache: PagedCache, rows: Sequence[int], layers: int = LAYERS) -> None:
    """A pass over new rows behind the live ones."""
    start, stop = cache.length, cache.length + len(rows)
    visible, given = cache.end_at(stop), contents(rows)
    for layer in range(layers):
        cache.write(layer, slice(start, stop), *(x[None, layer] for x in given))
        for found, x in zip(cache.read(layer, visible), given, strict=True):
            assert found.isfinite().all() and found.shape[2] == visible == stop + KEY_MULTIPLE
            assert torch.equal(found[0, :, start:stop], x[layer])


def append(cache: PagedCache, expected: Expected, tokens: list[int]) -> None:
    begin = len(expected.tokens)
    cache.reserve(len(tokens))
    rows = follow([expected.live[place] for place in sorted(expected.live)], begin, tokens)
    write(cache, rows)
    cache.extend(torch.arange(begin, begin + len(tokens)), None, torch.tensor(tokens))
    if expected.exact == begin:
        expected.exact += len(tokens)
    expected.tokens += tokens
    expected.live.update(enumerate(rows, begin))


def drop(cache: PagedCache, expected: Expected, seed: int, share: float) -> None:
    keep = torch.rand(cache.length, generator=torch.Generator().manual_seed(seed)) < share
    gone = cache.positions[~keep].tolist()
    cache.drop(keep)
    for place in gone:
        del expected.live[place]
    expected.exact = min([expected.exact, *gone])


def renumber(cache: PagedCache, expected: Expected) -> None:
    places = sorted(expected.live)
    first = next((row for row, place in enumerate(places) if row != place), len(places))
    old = [expected.live[place] for place in places[first:]]
    if not old:
        return
    new = [name("moved", row, other) for row, other in enumerate(old, first)]
    k, v = contents(new)
    cache.renumber(first, k)
    assert torch.equal(cache.pool.v[:, :, cache.slot_map[first:]], contents(old)[1]), "values go along"
    cache.pool.v[:, :, cache.slot_map[first:]] = v  # from here on they bear their new names
    expected.live = {row: expected.live[row] for row in range(first)} | dict(enumerate(new, first))
    expected.tokens = [*expected.tokens[:first], *[MOVED] * len(new)]
    expected.exact = min(expected.exact, first)


def check(cache: PagedCache, expected: Expected) -> None:
    places = sorted(expected.live)
    assert cache.positions.tolist() == places and cache.length == len(places)
    assert cache.next_position == len(expected.tokens) and cache.tokens == expected.tokens
    assert cache.exact == expected.exact
    dropped = torch.ones(cache.next_position, dtype=torch.bool)
    dropped[cache.positions] = False
    assert (cache.slot_map[dropped] == SENTINEL).all() and (cache.slot_map[~dropped] != SENTINEL).all()
    if places:
        k, v = contents([expected.live[place] for place in places])
        for layer in range(LAYERS):
            assert torch.equal(cache.keys(layer), k[layer]) and torch.equal(cache.values(layer), v[layer])


class Requests(RuleBasedStateMachine):
    """Requests of one pool and one index, which come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool()
        self.index = SlotPrefixIndex(self.pool, BLOCK, PREFIX, "model")
        self.requests: dict[int, tuple[PagedCache, Expected]] = {}
        self.number = count()

    def pick(self, data: st.DataObject) -> tuple[PagedCache, Expected]:
        return self.requests[data.draw(st.sampled_from(sorted(self.requests)), label="request")]

    def add(self, cache: PagedCache, expected: Expected) -> None:
        self.requests[next(self.number)] = cache, expected

    @initialize(tokens=TOKENS)
    def first(self, tokens: list[int]) -> None:
        self.begin(tokens)
        append(*self.requests[0], tokens)

    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        """A prompt takes up the exact rows that the index has of it."""
        cache, expected = PagedCache(self.pool), Expected()
        found = self.index.match(self.index.names(tokens, ""))
        cache.adopt(found, tokens[: found.numel()])
        expected.live = dict(enumerate(follow([], 0, tokens[: found.numel()])))  # law 9: exact, whoever computed them
        expected.tokens, expected.exact = tokens[: found.numel()], found.numel()
        check(cache, expected)
        self.add(cache, expected)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=TOKENS)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        cache, expected = self.pick(data)
        before = cache.slot_map.tolist()
        try:
            append(cache, expected, tokens)
        except CapacityError as error:
            assert "more rows do not fit beside the" in str(error) and f"pool of {CAPACITY} slots" in str(error)
            assert self.pool.used + len(tokens) > CAPACITY
        assert cache.slot_map.tolist()[: len(before)] == before, "nothing moves"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), seed=st.integers(0, 99), share=st.sampled_from([0.3, 0.7, 0.95]))
    def evict(self, data: st.DataObject, seed: int, share: float) -> None:
        cache, expected = self.pick(data)
        before = cache.slot_map
        drop(cache, expected, seed, share)
        stays = cache.slot_map != SENTINEL
        assert torch.equal(cache.slot_map[stays], before[stays]), "survivors keep slot and position"

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        cache, expected = self.pick(data)
        names = self.index.names(expected.tokens[: expected.exact], "")
        self.index.insert(names, cache.slot_map, cache.exact)
        found = self.index.match(names)
        assert found.numel() == min(len(names), PREFIX // BLOCK) * BLOCK, (
            "the end of a prefix goes before its beginning"
        )

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def share_too_much(self, data: st.DataObject) -> None:
        """Law 9: what is not exact is refused, and nothing changes."""
        cache, expected = self.pick(data)
        tokens = [abs(token) for token in expected.tokens]
        names, before = self.index.names(tokens, ""), self.index.slots.tolist()
        if len(names) * BLOCK > expected.exact:
            with pytest.raises(ConfigError, match="approximate keys and values may not enter"):
                self.index.insert(names, cache.slot_map, cache.exact)
            assert self.index.slots.tolist() == before

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        cache, expected = self.pick(data)
        self.add(cache.fork(), expected.copy())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A request that nobody holds any more: its slots come back by themselves."""
        number = data.draw(st.sampled_from(sorted(self.requests)))
        del self.requests[number]

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), share=st.floats(0, 1))
    def cut(self, data: st.DataObject, share: float) -> None:
        cache, expected = self.pick(data)
        position = round(share * cache.next_position)
        cache.cut(position)
        expected.cut(position)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), share=st.floats(0, 1))
    def rewind(self, data: st.DataObject, share: float) -> None:
        cache, expected = self.pick(data)
        length = round(share * cache.length)
        if length < cache.length:
            expected.cut(sorted(expected.live)[length])
        cache.rewind(length, None)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), rows=st.integers(1, 5))
    def score(self, data: st.DataObject, rows: int) -> None:
        """Rows behind the others that never become part of the request, in room it keeps."""
        cache, _ = self.pick(data)
        try:
            cache.reserve(rows)
        except CapacityError:
            return
        write(cache, [name("candidate", number) for number in range(rows)])

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), rows=st.integers(1, 5), again=st.booleans())
    def abort(self, data: st.DataObject, rows: int, again: bool) -> None:
        """A prefill that fails when its rows are written in some layers: no row came, and its room is used again."""
        cache, expected = self.pick(data)
        with suppress(CapacityError):
            cache.reserve(rows, lasting=True)
            write(cache, [name("never", number) for number in range(rows)], layers=1)
        if again:
            cache.cut(len(expected.tokens))
            assert cache.slots.numel() == cache.length, "it keeps no room"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), seed=st.integers(0, 99))
    def renumber(self, data: st.DataObject, seed: int) -> None:
        """Survivors at positions 0, 1, ... with other keys; whoever else has the old rows keeps them."""
        cache, expected = self.pick(data)
        drop(cache, expected, seed, 0.7)
        before = cache.slots.tolist()
        try:
            renumber(cache, expected)
        except CapacityError:
            assert cache.slots.tolist() == before

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), keep=st.integers(0, 3))
    def unshare(self, data: st.DataObject, keep: int) -> None:
        """The index lets go of blocks one by one, unless somebody else than the request has all their rows."""
        cache, expected = self.pick(data)
        names = self.index.names(expected.tokens[: expected.exact], "")[keep:]
        others = {slot for one, _ in self.requests.values() if one is not cache for slot in one.slots.tolist()}
        stays = set()
        for name, block in reversed(self.index._blocks.items()):  # a block before those behind it
            if (block.before in {None, *stays}) and (name not in names or others >= set(block.slots.tolist())):
                stays.add(name)
        self.index.forget(names, cache.slots)
        assert set(self.index._blocks) == stays

    @rule()
    def clear(self) -> None:
        self.index.clear()

    @rule()
    def release_too_often(self) -> None:
        """It raises, and changes nothing."""
        before = self.pool.references.copy()
        free, once = (np.flatnonzero(before == times)[:3].tolist() for times in (0, 1))  # once: the sentinel first
        wrong = [[*once[1:], free[0]], free[:1]] if free else []
        for slots in [*wrong, 2 * once[1:2]]:
            if slots:
                with pytest.raises(ModelError, match="released more often"):
                    self.pool.release(torch.tensor(slots))
                assert (self.pool.references == before).all()

    @invariant()
    def slots_add_up(self) -> None:
        self.pool.check_integrity()
        held = {slot for cache, _ in self.requests.values() for slot in cache.slots.tolist()}
        held |= set(self.index.slots.tolist())
        assert self.pool.used == len(held) <= CAPACITY and SENTINEL not in held
        assert self.index.slots.numel() <= PREFIX
        assert {block.before for block in self.index._blocks.values()} <= {None, *self.index._blocks}, (
            "all can be found"
        )
        assert self.pool.k[:, :, SENTINEL].eq(0).all() and self.pool.references[SENTINEL] == 1

    @invariant()
    def everybody_has_what_they_were_given(self) -> None:
        for cache, expected in self.requests.values():
            check(cache, expected)

    def teardown(self) -> None:
        """In the end all slots are free."""
        self.requests.clear()
        self.index.clear()
        self.pool.check_integrity()
        assert self.pool.used == 0


Requests.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestRequests = Requests.TestCase


# -- the pool and the index alone ------------------------------------------------------------------------------------


def test_a_pool_without_a_limit_grows_and_nothing_moves() -> None:
    pool = make_pool(None)
    size, requests = pool.size, [(PagedCache(pool), Expected()) for _ in range(3)]
    for number in range(12):
        cache, expected = requests[number % 3]
        append(cache, expected, [number] * 100)
        for one in requests:
            check(*one)
        pool.check_integrity()
    assert pool.used == 1200 and pool.size > size and pool.k.shape[2] > pool.size


def test_a_full_pool_says_what_to_do_and_changes_nothing() -> None:
    pool = make_pool(10)
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1] * 7)
    other = cache.fork()
    with pytest.raises(CapacityError, match="4 more rows do not fit beside the 7 in use of a pool of 10 slots; lower"):
        cache.reserve(4)
    pool.check_integrity()
    check(cache, expected)
    check(other, expected.copy())
    cache.reserve(3)
    assert pool.used == 10
    pool.check_integrity()


def test_rows_that_move_stay_where_they_were_for_others() -> None:
    pool = make_pool()
    index = SlotPrefixIndex(pool, BLOCK, PREFIX, "model")
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1, 0, 1, 0, 0, 1])
    names = index.names(expected.tokens, "")
    index.insert(names, cache.slot_map, 6)
    fork, same = cache.fork(), expected.copy()
    drop(cache, expected, 0, 0.6)
    renumber(cache, expected)
    check(cache, expected)
    check(fork, same)
    heir = PagedCache(pool)
    heir.adopt(index.match(names), same.tokens)
    check(heir, same)
    pool.check_integrity()


def test_a_mask_has_to_fit_the_live_rows() -> None:
    cache, expected = PagedCache(make_pool()), Expected()
    append(cache, expected, [1, 0, 1])
    with pytest.raises(ConfigError, match="a mask of 2 rows does not fit the 3 live ones"):
        cache.drop(torch.tensor([True, False]))
    check(cache, expected)


def test_a_lost_reference_is_found() -> None:
    pool = make_pool()
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1, 0, 1])
    slot = int(cache.slot_map[1])
    pool.references[slot] += 1
    with pytest.raises(ModelError, match=f"1 slots do not add up: slot {slot} is referred to 1 times, but counted 2"):
        pool.check_integrity()
    pool.references[slot] -= 1
    pool.check_integrity()
