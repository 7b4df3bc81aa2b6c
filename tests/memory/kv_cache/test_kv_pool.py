"""KV pool of slots: laws 8 to 10 under random insertions, evictions, sharing, forks and releases.

A state machine compares requests with a dictionary of the expected rows by position. A row's name is a hash of its
position, its token and the rows before it, on which keys and values depend: equal exact rows have equal names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from keep_agent.errors import CapacityError, ConfigError, ModelError
from memory.engine.attention.kernels import KEY_MULTIPLE
from memory.kv_cache.kv_pool import SENTINEL, KVPool
from memory.kv_cache.paged import RENUMBERED, PagedCache
from memory.kv_cache.prefix_index import SlotPrefixIndex

LAYERS, KV_HEADS, DIM, BLOCK = 2, 1, 3, 2
CAPACITY, PREFIX = 26, 10
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def make_pool(capacity: int | None = CAPACITY) -> KVPool:
    return KVPool(LAYERS, KV_HEADS, DIM, torch.float32, torch.device("cpu"), capacity)


def name(*parts: object) -> int:
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8])


def follow(before: Sequence[int], position: int, tokens: Sequence[int]) -> list[int]:
    rows = list(before)
    for place, token in enumerate(tokens, position):
        rows.append(name(rows, place, token))
    return rows[len(before) :]


@lru_cache(10_000)
def content(row: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(row).standard_normal((2, LAYERS, KV_HEADS, DIM), np.float32))


def contents(rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = torch.stack([content(row) for row in rows]).permute(1, 2, 3, 0, 4)
    return k, v


@dataclass
class Expected:
    tokens: list[int] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)  # names of rows by position
    exact: int = 0

    def cut(self, position: int) -> None:
        del self.tokens[position:]
        self.live = {place: row for place, row in self.live.items() if place < position}
        self.exact = min(self.exact, position)


def write(cache: PagedCache, rows: Sequence[int], layers: int = LAYERS) -> None:
    start, stop = cache.length, cache.length + len(rows)
    visible, expected_kv = cache.end_at(stop), contents(rows)
    for layer in range(layers):
        cache.write(layer, slice(start, stop), *(x[None, layer] for x in expected_kv))
        for actual, x in zip(cache.read(layer, visible), expected_kv, strict=True):
            assert actual.isfinite().all() and actual.shape[2] == visible == stop + KEY_MULTIPLE
            assert torch.equal(actual[0, :, start:stop], x[layer])


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
    places = cache.positions[~keep].tolist()
    cache.drop(keep)
    for place in places:
        del expected.live[place]
    expected.exact = min([expected.exact, *places])


def renumber(cache: PagedCache, expected: Expected) -> None:
    places = sorted(expected.live)
    first = next((row for row, place in enumerate(places) if row != place), len(places))
    old = [expected.live[place] for place in places[first:]]
    if not old:
        return
    new = [name("moved", place, row) for place, row in enumerate(old, first)]
    k, v = contents(new)
    cache.renumber(first, k)
    assert torch.equal(cache.pool.v[:, :, cache.slot_map[first:]], contents(old)[1]), "values must move too"
    cache.pool.v[:, :, cache.slot_map[first:]] = v  # the values of the new names
    expected.live = {row: expected.live[row] for row in range(first)} | dict(enumerate(new, first))
    expected.tokens = [*expected.tokens[:first], *[RENUMBERED] * len(new)]
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
    """State machine of requests that share one pool and one index."""

    numbers = Bundle("numbers")

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool()
        self.index = SlotPrefixIndex(self.pool, BLOCK, PREFIX, "model")
        self.requests: dict[int, tuple[PagedCache, Expected]] = {}
        self.count = count()

    def add(self, cache: PagedCache, expected: Expected) -> int:
        number = next(self.count)
        self.requests[number] = cache, expected
        return number

    @initialize(target=numbers, tokens=TOKENS)
    def first(self, tokens: list[int]) -> int:
        number = self.begin(tokens)
        append(*self.requests[number], tokens)
        return number

    @rule(target=numbers, tokens=TOKENS)
    def begin(self, tokens: list[int]) -> int:
        cache, expected = PagedCache(self.pool), Expected()
        actual = self.index.match(self.index.names(tokens, ""))
        cache.adopt(actual, tokens[: actual.numel()])
        expected.live = dict(enumerate(follow([], 0, tokens[: actual.numel()])))  # law 9
        expected.tokens, expected.exact = tokens[: actual.numel()], actual.numel()
        check(cache, expected)
        return self.add(cache, expected)

    @rule(number=numbers, tokens=TOKENS)
    def extend(self, number: int, tokens: list[int]) -> None:
        cache, expected = self.requests[number]
        before = cache.slot_map.tolist()
        try:
            append(cache, expected, tokens)
        except CapacityError as error:
            in_use = f"{self.pool.in_use} of its {CAPACITY} slots are in use; lower"
            assert f" rows do not fit into the pool: {in_use}" in str(error)
            assert self.pool.in_use + len(tokens) > CAPACITY
        assert cache.slot_map.tolist()[: len(before)] == before, "nothing moves"

    @rule(number=numbers, seed=st.integers(0, 99), share=st.sampled_from([0.3, 0.7, 0.95]))
    def evict(self, number: int, seed: int, share: float) -> None:
        cache, expected = self.requests[number]
        before = cache.slot_map
        drop(cache, expected, seed, share)
        stays = cache.slot_map != SENTINEL
        assert torch.equal(cache.slot_map[stays], before[stays]), "survivors must keep slot and position"

    @rule(number=numbers)
    def share(self, number: int) -> None:
        cache, expected = self.requests[number]
        names = self.index.names(expected.tokens[: expected.exact], "")
        self.index.insert(names, cache.slot_map, cache.exact)
        actual = self.index.match(names)
        assert actual.numel() == min(len(names), PREFIX // BLOCK) * BLOCK, "evicted from the end"

    @rule(number=numbers)
    def share_too_much(self, number: int) -> None:
        """Check law 9: approximate rows are refused, and nothing changes."""
        cache, expected = self.requests[number]
        tokens = [abs(token) for token in expected.tokens]
        names, before = self.index.names(tokens, ""), self.index.slots.tolist()
        if len(names) * BLOCK > expected.exact:
            with pytest.raises(ConfigError, match="approximate keys and values may not enter"):
                self.index.insert(names, cache.slot_map, cache.exact)
            assert self.index.slots.tolist() == before

    @rule(target=numbers, number=numbers)
    def fork(self, number: int) -> int:
        cache, expected = self.requests[number]
        return self.add(cache.fork(), deepcopy(expected))

    @rule(number=consumes(numbers))
    def free(self, number: int) -> None:
        del self.requests[number]

    @rule(number=numbers, share=st.floats(0, 1))
    def cut(self, number: int, share: float) -> None:
        cache, expected = self.requests[number]
        position = round(share * cache.next_position)
        cache.cut(position)
        expected.cut(position)

    @rule(number=numbers, share=st.floats(0, 1))
    def rewind(self, number: int, share: float) -> None:
        cache, expected = self.requests[number]
        length = round(share * cache.length)
        if length < cache.length:
            expected.cut(sorted(expected.live)[length])
        cache.rewind(length, None)

    @rule(number=numbers, rows=st.integers(1, 5))
    def score(self, number: int, rows: int) -> None:
        """Write candidate rows that never become part of the request; their slots stay reserved."""
        cache, _ = self.requests[number]
        try:
            cache.reserve(rows)
        except CapacityError:
            return
        write(cache, [name("candidate", number) for number in range(rows)])

    @rule(number=numbers, rows=st.integers(1, 5), again=st.booleans())
    def abort(self, number: int, rows: int, again: bool) -> None:
        """Fail a prefill after its first layer: no row is added, and its slots are used again."""
        cache, expected = self.requests[number]
        with suppress(CapacityError):
            cache.reserve(rows, keep=True)
            write(cache, [name("never", number) for number in range(rows)], layers=1)
        if again:
            cache.cut(len(expected.tokens))
            assert cache.slots.numel() == cache.length, "no room may be kept"

    @rule(number=numbers, seed=st.integers(0, 99))
    def renumber(self, number: int, seed: int) -> None:
        """Move survivors to positions 0, 1, ... with new keys; other owners keep the old rows."""
        cache, expected = self.requests[number]
        drop(cache, expected, seed, 0.7)
        before = cache.slots.tolist()
        try:
            renumber(cache, expected)
        except CapacityError:
            assert cache.slots.tolist() == before

    @rule(number=numbers, keep=st.integers(0, 3))
    def unshare(self, number: int, keep: int) -> None:
        """Delete a request's blocks from the index, except blocks whose rows another request has."""
        cache, expected = self.requests[number]
        names = self.index.names(expected.tokens[: expected.exact], "")[keep:]
        referenced = {slot for c, _ in self.requests.values() if c is not cache for slot in c.slots.tolist()}
        stays = set()
        for name, block in reversed(self.index._blocks.items()):  # in this order a block comes before its successors
            if (block.before in {None, *stays}) and (name not in names or referenced >= set(block.slots.tolist())):
                stays.add(name)
        self.index.forget(names, cache.slots)
        assert set(self.index._blocks) == stays

    @rule()
    def clear(self) -> None:
        self.index.clear()

    @rule()
    def release_too_often(self) -> None:
        """Release slots more often than they are referenced: an error, and no change."""
        before = self.pool.references.copy()
        free, once = (np.flatnonzero(before == times)[:3].tolist() for times in (0, 1))  # once[0] is the sentinel
        wrong = [[*once[1:], free[0]], free[:1]] if free else []
        for slots in [*wrong, 2 * once[1:2]]:
            if slots:
                with pytest.raises(ModelError, match="released more often"):
                    self.pool.release(torch.tensor(slots))
                assert (self.pool.references == before).all()

    @invariant()
    def slots_add_up(self) -> None:
        self.pool.check_integrity()
        slots = {slot for cache, _ in self.requests.values() for slot in cache.slots.tolist()}
        slots |= set(self.index.slots.tolist())
        assert self.pool.in_use == len(slots) <= CAPACITY and SENTINEL not in slots
        assert self.index.slots.numel() <= PREFIX
        assert {block.before for block in self.index._blocks.values()} <= {None, *self.index._blocks}, "no gaps"
        assert self.pool.k[:, :, SENTINEL].eq(0).all() and self.pool.references[SENTINEL] == 1

    @invariant()
    def requests_have_the_expected_rows(self) -> None:
        for cache, expected in self.requests.values():
            check(cache, expected)

    def teardown(self) -> None:
        self.requests.clear()
        self.index.clear()
        self.pool.check_integrity()
        assert self.pool.in_use == 0


Requests.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestRequests = Requests.TestCase


def test_a_pool_without_a_limit_grows_and_nothing_moves() -> None:
    pool = make_pool(None)
    size, requests = pool.size, [(PagedCache(pool), Expected()) for _ in range(3)]
    for number in range(12):
        cache, expected = requests[number % 3]
        append(cache, expected, [number] * 100)
        for request in requests:
            check(*request)
        pool.check_integrity()
    assert pool.in_use == 1200 and pool.size > size and pool.k.shape[2] > pool.size


def test_a_mask_must_fit_the_live_rows() -> None:
    cache, expected = PagedCache(make_pool()), Expected()
    append(cache, expected, [1, 0, 1])
    with pytest.raises(ConfigError, match="a mask of 2 rows does not fit the 3 live rows"):
        cache.drop(torch.tensor([True, False]))
    check(cache, expected)


def test_a_wrong_reference_count_is_detected() -> None:
    pool = make_pool()
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1, 0, 1])
    slot = int(cache.slot_map[1])
    pool.references[slot] += 1
    message = f"1 slots have a wrong reference count: slot {slot} has 1 references, but its count is 2"
    with pytest.raises(ModelError, match=message):
        pool.check_integrity()
    pool.references[slot] -= 1
    pool.check_integrity()
