"""Exact prefix index over slots: which blocks it returns, which it deletes, and its use by several threads."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.transformers.cache_providers import PagedCacheProvider
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.prefix_index import SlotPrefixIndex
from tests.memory.kv_cache.test_kv_pool import BLOCK, PREFIX, Expected, append, make_pool
from tests.memory.sessions import QUERY, furnished, moving
from tests.threads import at_once


@pytest.fixture
def pool() -> KVPool:
    return make_pool()


def test_blocks_that_share_a_slot_are_deleted_one_by_one(pool: KVPool) -> None:
    """Two transcripts of one request diverge within a block: neither block keeps the other alive."""
    index = SlotPrefixIndex(pool, 3, 12, "model")
    cache, expected, names = PagedCache(pool), Expected(), []
    for tokens in ([1, 0, 1, 0], [0, 0]):
        append(cache, expected, tokens)
        names.append(index.names(expected.tokens, ""))
        index.insert(names[-1], cache.slot_map, cache.exact)
        cache.cut(1)
        expected.cut(1)
        pool.check_integrity()
    assert pool.in_use == 5 and index.slots.tolist().count(int(cache.slot_map[0])) == 2
    index.forget(names[0], cache.slots)
    pool.check_integrity()
    assert pool.in_use == 3 and index.match(names[1]).numel() == 3, "the second block is complete"
    index.forget(names[1], cache.slots)
    pool.check_integrity()
    assert pool.in_use == 1 and not index.slots.numel()


def test_blocks_behind_a_deleted_one_are_deleted(pool: KVPool) -> None:
    index = SlotPrefixIndex(pool, BLOCK, PREFIX, "model")
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1, 0, 1, 0, 1, 1])
    names = index.names(expected.tokens, "")
    index.insert(names, cache.slot_map, cache.exact)
    index.forget(names[1:2], cache.slots)
    pool.check_integrity()
    assert index.slots.tolist() == cache.slot_map[:2].tolist()


def test_names_depend_on_model_namespace_and_all_tokens_before(pool: KVPool) -> None:
    """Law 10: a prompt with another first token hits nothing of the text behind it."""
    a, b = (SlotPrefixIndex(pool, BLOCK, PREFIX, model) for model in ("model", "other"))
    tokens = [1, 0, 1, 1]
    names = [*a.names(tokens, ""), *a.names(tokens, "you"), *b.names(tokens, ""), *a.names([0, *tokens], "")]
    assert len(set(names)) == len(names) == 8 and a.names([*tokens, 1], "") == a.names(tokens, "")
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, tokens)
    a.insert(a.names(tokens, ""), cache.slot_map, 4)
    assert a.match(a.names([1, 0, 0, 1], "")).tolist() == cache.slot_map[:2].tolist()
    assert not a.match(a.names([0, 0, 1, 1], "")).numel()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_sessions(provider: PagedCacheProvider, rng: random.Random, steps: int = 400) -> None:
    """Run one session after another, whose prompts have common beginnings."""
    cache = provider.cache(AttentionObserver())
    for _ in range(steps):
        step = rng.choice(["begin", "extend", "drop", "share", "fork", "withdraw"])
        if step == "begin":
            cache = provider.cache(AttentionObserver())
            provider.take(cache, [rng.randrange(2)] * 64, "", more_than=0)
        elif step == "extend":  # as a prefill does, without writing rows
            tokens = torch.tensor([rng.randrange(2)] * rng.randint(1, 64))
            cache.reserve(len(tokens), lasting=True)
            cache.extend(cache.next_position + torch.arange(len(tokens)), None, tokens)
        elif step == "drop":
            cache.drop(torch.rand(cache.length) < 0.8)
        elif step == "share":
            provider.publish(cache, "")
        elif step == "fork":
            cache = cache.fork()
        else:
            provider.withdraw(cache, provider.publish(cache, "")[1:])


@pytest.mark.usefixtures("frequent_switches")
def test_requests_of_several_threads_share_one_pool(engine: Engine) -> None:
    provider = engine.cache_provider(None, 4, prefix_tokens=64)
    at_once(*(lambda seed=seed: run_sessions(provider, random.Random(seed)) for seed in range(4)))
    provider.pool.check_integrity()
    assert provider.pool.in_use == len(set(provider.index.slots.tolist()))
    provider.index.clear()
    assert provider.pool.in_use == 0


def test_rows_are_written_by_the_worker_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renumbering survivors may grow the pool, which must not happen during another thread's write."""
    writers, original = set(), PagedCache.renumber

    def renumber(cache: PagedCache, first: int, keys: torch.Tensor) -> None:
        writers.add(threading.current_thread().name)
        original(cache, first, keys)

    monkeypatch.setattr(PagedCache, "renumber", renumber)
    session = furnished(engine, moving())
    session.prefill("mug_1", QUERY)
    assert writers == {"engine"}
