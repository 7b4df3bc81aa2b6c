"""Forks of a packed cache: they share whole blocks, and none of them sees what another does."""

from __future__ import annotations

import random

import pytest
import torch

from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import ChunkSchedule
from memory.kv_cache.quantized import BLOCK, QuantizedCache
from tests.laws.prompts import relative, tokens
from tests.memory.kv_cache.pairs import (
    FORMATS,
    SMALL,
    GetEngine,
    Pair,
    bits_of,
    packed,
    same,
)


@SMALL
@pytest.mark.parametrize("length", [30, 64, 256, 300, 512, 700])
def test_forks_go_their_own_ways(family: str, length: int, engine_of: GetEngine) -> None:
    parent = Pair.new(engine_of(family))
    parent.append(length)
    children = [parent.fork() for _ in range(3)]
    for number, pair in enumerate([*children, parent]):
        pair.step = 10 * number
        pair.append(50 + 100 * number)
    children[1].cut(length // 2)
    parent.cut(length // 3)
    children[2].drop(0.3)
    for pair in (parent, *children, children[0].fork()):
        pair.append(33)
        pair.check_rows()


def storages(cache: QuantizedCache) -> set[int]:
    return {extent.k.codes.untyped_storage().data_ptr() for extent in cache.extents}


@pytest.mark.parametrize("chunking", [None, ChunkSchedule(whole=1, steps=((300, 300),), rest=150)])
def test_whole_blocks_are_shared_and_never_written_to(chunking: ChunkSchedule | None, engine_of: GetEngine) -> None:
    """A thousand rows serve ten forks, but for the last block; whatever the forks and their parent do, they stay."""
    engine = engine_of()
    parent = packed(engine)
    engine.extend(parent, tokens(1000, 1), chunking)
    parent.freeze()
    rows, shared = bits_of(parent), list(parent.extents)
    before = [x.clone() for extent in shared for side in (extent.k, extent.v) for x in side.tensors]
    forks = [parent.fork() for _ in range(10)]
    for number, fork in enumerate((*forks, parent)):
        engine.extend(fork, tokens(150, number))
        own = [
            extent
            for extent in fork.extents
            if not any(extent.k.codes.data_ptr() == x.k.codes.data_ptr() for x in shared)
        ]
        assert sum(extent.blocks for extent in fork.extents) - sum(extent.blocks for extent in own) == 1000 // BLOCK
        parent_rows = (x[:, :960] for x in rows)
        assert all(torch.equal(a[:, :960], b) for a, b in zip(bits_of(fork), parent_rows, strict=True))
    chance = random.Random(0)
    for fork in (*forks, parent):
        for _ in range(4):
            fork.cut(chance.randrange(fork.next_position + 1))
            engine.extend(fork, tokens(chance.randrange(1, 400), chance.randrange(1000)))
    assert same(before, [x for extent in shared for side in (extent.k, extent.v) for x in side.tensors])


def test_rows_grow_in_place_after_a_fork(engine_of: GetEngine) -> None:
    """Turn by turn a fork takes its parent's place: no row is copied, and there are few extents."""
    engine = engine_of()
    cache = packed(engine)
    for turn in range(40):
        before = list(cache.extents)
        fork, cache = cache, cache.fork()
        engine.extend(cache, tokens(40, turn))
        assert all(a is b for a, b in zip(before, cache.extents, strict=False))
        engine.extend(fork, tokens(3, turn))  # who comes second copies a block
    assert len(cache.extents) <= 4


def test_what_was_cut_away_takes_no_room_for_long(engine_of: GetEngine) -> None:
    """Little that is left of much moves to a place of its own."""
    engine = engine_of()
    cache = packed(engine)
    engine.extend(cache, tokens(5000, 1), ChunkSchedule())
    before, kept = storages(cache), list(cache.extents)  # or the new place might be the old one
    cache.cut(600)
    engine.extend(cache, tokens(100, 2))
    assert kept and not before & storages(cache)
    engine.extend(cache, tokens(1500, 1))
    before = storages(cache)
    cache.cut(2000)
    engine.extend(cache, tokens(100, 2))
    assert before & storages(cache), "much of it stays where it is"


def test_a_fork_has_no_observer(engine_of: GetEngine) -> None:
    engine = engine_of()
    cache = QuantizedCache(engine.info, FORMATS[0], engine.device, AttentionObserver(recent=4))
    engine.extend(cache, tokens(100, 1))
    fork = cache.fork()
    assert fork.observer is None
    found = engine.extend(fork, tokens(9, 2)).logits
    assert relative(found, engine.extend(cache, tokens(9, 2)).logits) == 0
    assert cache.observer.places.tolist() == [105, 106, 107, 108]
