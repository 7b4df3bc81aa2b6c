"""Indexes of stored blocks and of slots: leases, exact prefixes, segment hashes, and their use by several threads."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.construction.prefix import Prefix
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.transformers.cache_providers import PagedCacheProvider
from memory.kv_cache.block import Entry
from memory.kv_cache.block_store import MAX_UNUSED_PROMPTS, BlockPool, CacheLedger
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.prefix_index import PrefixIndex, SlotPrefixIndex
from memory.kv_cache.segment_index import SegmentIndex, segment_hash
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.storage.ram import Ram
from tests.memory.houses import encode_text
from tests.memory.kv_cache.test_kv_pool import BLOCK, PREFIX, Expected, append, make_pool
from tests.memory.layouts import block
from tests.memory.sessions import QUERY, close, furnished, moving, open_session, plain, prefix
from tests.threads import at_once


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(Ram())


def test_a_block_is_deleted_with_its_last_lease(pool: BlockPool) -> None:
    first, second = pool.lease(), pool.lease()
    for name in "ab":
        first.put(block(4, name=name))
    assert second.get("a") is not None
    first.release()
    assert pool.storage.contains("a") and not pool.storage.contains("b") and dict(pool.references) == {"a": 1}
    second.drop("a")
    second.drop("a")
    assert pool.storage.stats()["blocks"] == 0 and not pool.references
    second.release()


def test_references_to_evicted_blocks_are_dropped() -> None:
    pool = BlockPool(Ram(budget_bytes=10 * block(4).nbytes))
    lease, index = pool.lease(), SegmentIndex(pool)
    for number in range(5000):
        lease.put(block(4, name=str(number)))
        index.insert(f"name {number}", str(number), 0, 4)
    assert len(pool.references) < 1100 > len(index) and index.find("name 4999", lease) is not None
    lease.release()
    assert pool.storage.stats()["bytes"] == 0


def test_blocks_that_no_recent_prompt_used_are_deleted(pool: BlockPool) -> None:
    names, lease, second = ("used", "shared", "unused"), pool.lease(), pool.lease()
    for name in names:
        lease.put(block(4, name=name))
    second.get("shared")
    for _ in range(MAX_UNUSED_PROMPTS):
        lease.get("used")
        lease.next_prompt()
    assert pool.storage.stats()["blocks"] == 3
    lease.next_prompt()
    assert [name for name in names if pool.storage.contains(name)] == ["used", "shared"]
    assert dict(pool.references) == {"used": 1, "shared": 1}


def test_a_full_storage_evicts_the_end_of_a_prefix_first() -> None:
    pool = BlockPool(Ram(budget_bytes=5 * block(4).nbytes))
    index = PrefixIndex(pool.lease(), 4, "model", (), "")
    chain = index.chain(range(16))
    index.insert(chain, 0, block(16), exact=True)
    index.match(chain)
    for number in range(3):
        pool.storage.put(block(4, name=str(number)))
    assert [hit.identity for hit in index.match(chain)] == chain[:2]


def test_the_prefix_index_returns_complete_exact_blocks_only(pool: BlockPool) -> None:
    index = PrefixIndex(pool.lease(), 2, "model", (1,), "")
    chain = index.chain(range(7))
    assert len(chain) == 3
    index.insert(chain[:2], 0, block(4), exact=True)
    assert [hit.identity for hit in index.match(index.chain(range(9)))] == chain[:2]
    assert index.match(index.chain([0, 1, 9, 3])) == index.match(chain[:1])
    assert index.match(index.chain([9, 1, 2, 3])) == []
    with pytest.raises(ConfigError, match="approximate"):
        index.insert(chain, 2, block(2), exact=False)
    with pytest.raises(ConfigError, match="1 blocks of 2 tokens do not fit 3 rows"):
        index.insert(chain, 2, block(3), exact=True)
    with pytest.raises(ConfigError, match="block_size=0"):
        PrefixIndex(pool.lease(), 0, "model", (), "")
    keys = [("other", (1,), ""), ("model", (2,), ""), ("model", (1,), "agent")]
    names = {PrefixIndex(pool.lease(), 2, *key).chain(range(4))[0] for key in keys}
    assert len(names | {chain[0]}) == 4


class MixedNamespaces(Prefix):
    """Prefix of one unit per segment, the second of which belongs to another namespace."""

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        units = [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]
        return [replace(unit, namespace="other" * (number == 1)) for number, unit in enumerate(units)]


def test_a_prefix_ends_before_a_unit_of_another_namespace(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), construction=MixedNamespaces(block_size=4)))
    for number in range(3):
        session.store.put(f"mug_{number}", "object", f"mug mug_{number} hand\n")
    hits = [session.prefill("q", QUERY).counts.hit_tokens for _ in range(3)]
    assert hits == [0, 4, 4], "of three segments of 4 tokens"


def test_a_prefix_ends_before_text_in_front(engine: Engine) -> None:
    """Rows of the memory depend on the text before it, so rows of a prompt without that text cannot be reused."""
    session = open_session(engine, prefix())
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    for front, hits, invalid in (("", 0, 0), ("", 4, 0), ("look for it\n", 0, 4), ("look for it\n", 0, 0), ("", 4, 0)):
        prefill = session.prefill("q", QUERY, front_ids=encode_text(front) if front else ())
        assert (prefill.counts.hit_tokens, prefill.counts.invalidated_tokens) == (hits, invalid)
        assert close(prefill.logits, plain(engine, prefill))


def test_the_hash_depends_on_model_tokens_and_extra_key_alone() -> None:
    keys = [("model", (1, 2, 3), "key"), ("other", (1, 2, 3), "key"), ("model", (1, 2), "key")]
    keys += [("model", (3, 2, 1), "key"), ("model", (1, 2, 3), "")]
    assert len({segment_hash(*key) for key in keys}) == 5
    assert segment_hash("model", (1, 2, 3), "key") == segment_hash("model", [1, 2, 3], "key")
    pinned = "a2450d09df593edc146155d027f55484879c36ae16ff4afceb0dece92832a0b9"
    assert segment_hash("model", range(40), "kitchen") == pinned, "the same in every process"


def test_several_names_refer_to_parts_of_one_block_without_a_copy(pool: BlockPool) -> None:
    lease, index, stored = pool.lease(), SegmentIndex(pool), block(10, name="physical")
    lease.put(stored)
    for name, rows in {"all": (0, 10), "again": (0, 10), "part": (3, 7)}.items():
        index.insert(name, "physical", *rows)
    assert index.find("all", lease) is index.find("again", lease) is stored
    part = index.find("part", lease)
    assert torch.equal(part.k, stored.k[:, :, 3:7]) and torch.equal(part.v, stored.v[:, :, 3:7])
    assert part.k.untyped_storage().data_ptr() == stored.k.untyped_storage().data_ptr()
    assert part.identity != stored.identity and pool.storage.stats()["blocks"] == 1
    assert index.names("physical") == ["all", "again", "part"]
    index.delete("all")
    index.delete("all")
    assert index.find("all", lease) is None and index.find("again", lease) is stored


def test_a_segment_hit_takes_a_reference_to_its_block(pool: BlockPool) -> None:
    first, second, index = pool.lease(), pool.lease(), SegmentIndex(pool)
    first.put(block(4, name="physical"))
    index.insert("name", "physical", 0, 2)
    assert pool.references["physical"] == 1 and index.find("name", second) is not None
    first.release()
    assert "name" in index and index.find("name", second) is not None
    second.release()
    assert "name" not in index and len(index) == 1 and index.find("name", second) is None
    assert len(index) == 0 and index.physical("name") is None, "an entry without its block is dropped"


CALLS = st.tuples(
    st.sampled_from(["add", "add", "touch", "make_oldest", "remove"]), st.sampled_from("abcde"), st.integers(0, 4)
)


def keys_of(entries: list[Entry] | CacheLedger[Entry]) -> str:
    return "".join(entry.key for entry in entries)


def ledger(*sizes: int) -> CacheLedger[Entry]:
    """Return entries a, b, ... of these bytes; a, c, e belong to x, the rest to y."""
    pairs = enumerate(zip("abcdef", sizes, strict=False))
    return CacheLedger(Entry(key, size, "xy"[i % 2], i) for i, (key, size) in pairs)


@given(st.lists(CALLS, max_size=40))
def test_a_ledger_equals_a_list_in_order_of_use(calls: list[tuple[str, str, int]]) -> None:
    books, order = CacheLedger(), {}
    for call, key, size in calls:
        if call == "add":
            order.pop(key, None)
            order[key] = size
            books.add(Entry(key, size, owner=size % 2))
        elif call == "touch" and key in order:
            order[key] = order.pop(key)
            books.touch(key)
        elif call == "make_oldest":
            order = {key: order[key], **order} if key in order else order
            books.make_oldest(key)
        elif call == "remove":
            order.pop(key, None)
            books.remove(key)
        assert keys_of(books) == "".join(order) and len(books) == len(order) and books.nbytes == sum(order.values())
        assert [key in books for key in "abcde"] == [key in order for key in "abcde"]
        shares = Counter()
        for size in order.values():
            shares[size % 2] += size
        assert +books.shares == +shares


def test_victims_are_the_least_recently_used_that_free_enough() -> None:
    books = ledger(3, 1, 2, 4)
    assert [keys_of(books.victims(excess)) for excess in (-1, 0, 1, 3, 4, 99)] == ["", "", "a", "a", "ab", "abcd"]
    assert keys_of(books) == "abcd", "the choice changes nothing"
    assert [keys_of(ledger(1, 1, 1).expired(latest)) for latest in (-1, 0, 1.5, 9)] == ["", "a", "ab", "abc"]


def test_rules_get_the_remaining_share_and_apply_one_after_another() -> None:
    books = ledger(3, 1, 2, 4, 5)
    assert keys_of(books.victims(99, lambda entry, share: share > 5)) == "ac", "x has 10 bytes, then 7, then 5"
    assert keys_of(books.victims(99, lambda entry, share: share - entry.nbytes >= 4)) == "abc"
    rules = (lambda entry, _: entry.owner == "y", lambda entry, _: entry.key == "a")
    books = ledger(3, 1, 2, 4)
    assert [keys_of(books.victims(excess, *rules)) for excess in (1, 5, 6, 99)] == ["b", "bd", "bda", "bda"]


@pytest.fixture
def slots() -> KVPool:
    return make_pool()


def test_blocks_that_share_a_slot_are_deleted_one_by_one(slots: KVPool) -> None:
    """Two transcripts of one request diverge within a block: neither block keeps the other alive."""
    index = SlotPrefixIndex(slots, 3, 12, "model")
    cache, expected, names = PagedCache(slots), Expected(), []
    for tokens in ([1, 0, 1, 0], [0, 0]):
        append(cache, expected, tokens)
        names.append(index.names(expected.tokens, ""))
        index.insert(names[-1], cache.slot_map, cache.exact)
        cache.cut(1)
        expected.cut(1)
        slots.check_integrity()
    assert slots.in_use == 5 and index.slots.tolist().count(int(cache.slot_map[0])) == 2
    index.forget(names[0], cache.slots)
    slots.check_integrity()
    assert slots.in_use == 3 and index.match(names[1]).numel() == 3, "the second block is complete"
    index.forget(names[1], cache.slots)
    slots.check_integrity()
    assert slots.in_use == 1 and not index.slots.numel()


def test_blocks_behind_a_deleted_one_are_deleted(slots: KVPool) -> None:
    index = SlotPrefixIndex(slots, BLOCK, PREFIX, "model")
    cache, expected = PagedCache(slots), Expected()
    append(cache, expected, [1, 0, 1, 0, 1, 1])
    names = index.names(expected.tokens, "")
    index.insert(names, cache.slot_map, cache.exact)
    index.forget(names[1:2], cache.slots)
    slots.check_integrity()
    assert index.slots.tolist() == cache.slot_map[:2].tolist()


def test_names_depend_on_model_namespace_and_all_tokens_before(slots: KVPool) -> None:
    """Law 10: a prompt with another first token hits nothing of the text behind it."""
    a, b = (SlotPrefixIndex(slots, BLOCK, PREFIX, model) for model in ("model", "other"))
    tokens = [1, 0, 1, 1]
    names = [*a.names(tokens, ""), *a.names(tokens, "you"), *b.names(tokens, ""), *a.names([0, *tokens], "")]
    assert len(set(names)) == len(names) == 8 and a.names([*tokens, 1], "") == a.names(tokens, "")
    cache, expected = PagedCache(slots), Expected()
    append(cache, expected, tokens)
    a.insert(a.names(tokens, ""), cache.slot_map, 4)
    assert a.match(a.names([1, 0, 0, 1], "")).tolist() == cache.slot_map[:2].tolist()
    assert not a.match(a.names([0, 0, 1, 1], "")).numel()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_sessions(provider: PagedCacheProvider, rng: random.Random, steps: int = 400) -> None:
    cache = provider.cache(AttentionObserver())
    for _ in range(steps):
        step = rng.choice(["begin", "extend", "drop", "share", "fork", "withdraw"])
        if step == "begin":
            cache = provider.cache(AttentionObserver())
            provider.take(cache, [rng.randrange(2)] * 64, "", more_than=0)
        elif step == "extend":  # as a prefill does, without writing rows
            tokens = torch.tensor([rng.randrange(2)] * rng.randint(1, 64))
            cache.reserve(len(tokens), keep=True)
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
