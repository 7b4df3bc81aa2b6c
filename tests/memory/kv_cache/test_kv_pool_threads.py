"""Requests of one pool come, fork, share and go in several threads at a time, and all slots add up."""

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
from memory.kv_cache.paged import PagedCache
from tests.memory.houses import furnish
from tests.memory.sessions import QUERY, moving, open_session

THREADS, STEPS, BLOCK = 4, 400, 4


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def extend(cache: PagedCache, tokens: list[int]) -> None:
    """As a prefill does, without rows to write."""
    cache.reserve(len(tokens), lasting=True)
    start = cache.next_position
    cache.extend(torch.arange(start, start + len(tokens)), None, torch.tensor(tokens))


def live(shelf: PagedCacheProvider, rng: random.Random) -> None:
    """One session after another, each with a beginning that others have too."""
    cache = shelf.cache(AttentionObserver())
    for _ in range(STEPS):
        step = rng.choice(["begin", "extend", "drop", "share", "fork", "withdraw"])
        if step == "begin":
            cache = shelf.cache(AttentionObserver())
            shelf.take(cache, [rng.randrange(2)] * 64, "", more_than=0)
        elif step == "extend":
            extend(cache, [rng.randrange(2)] * rng.randint(1, 64))
        elif step == "drop":
            cache.drop(torch.rand(cache.length) < 0.8)
        elif step == "share":
            shelf.publish(cache, "")
        elif step == "fork":
            cache = cache.fork()
        else:
            shelf.withdraw(cache, shelf.publish(cache, "")[1:])


@pytest.mark.usefixtures("hurried")
def test_requests_of_several_threads_share_one_pool(engine: Engine) -> None:
    shelf, errors = engine.cache_provider(None, BLOCK, prefix_tokens=64), []

    def work(number: int) -> None:
        try:
            live(shelf, random.Random(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    shelf.pool.check_integrity()
    assert shelf.pool.used == len(set(shelf.index.slots.tolist()))
    shelf.index.clear()
    assert shelf.pool.used == 0


def test_rows_are_written_by_the_worker_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of survivors that are numbered anew: the pool may not grow while somebody else writes."""
    writers = set()

    def renumber(cache: PagedCache, first: int, keys: torch.Tensor) -> None:
        writers.add(threading.current_thread().name)
        renumbered(cache, first, keys)

    renumbered = PagedCache.renumber
    monkeypatch.setattr(PagedCache, "renumber", renumber)
    session = open_session(engine, moving())
    furnish(session.store)
    session.prefill("mug_1", QUERY)
    assert writers == {"engine"}
