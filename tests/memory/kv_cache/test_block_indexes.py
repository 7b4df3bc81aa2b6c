"""Block leases, the cache ledger, and indexes of the exact prefix and of segments at any offset."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.kv_cache.block import Entry
from memory.kv_cache.block_store import UNUSED, BlockPool, CacheLedger
from memory.kv_cache.prefix_index import PrefixIndex
from memory.kv_cache.segment_index import SegmentIndex, segment_hash
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.storage.ram import Ram
from tests.memory.houses import encode_text
from tests.memory.layouts import block
from tests.memory.sessions import QUERY, close, open_session, plain, prefix

ROOT = Path(__file__).parents[3]


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
    for _ in range(UNUSED):
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
    """Rows of the memory depend on the text before it, so rows of an earlier prompt are of no use."""
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


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_hash_is_the_same_in_every_process(seed: str) -> None:
    code = "from memory.kv_cache.segment_index import segment_hash; print(segment_hash('model', range(40), 'kitchen'))"
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONHASHSEED": seed}, "text": True, "check": True}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, **options)
    assert result.stdout.strip() == segment_hash("model", range(40), "kitchen")


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


def test_an_entry_without_its_block_misses_and_is_dropped(pool: BlockPool) -> None:
    first, second, index = pool.lease(), pool.lease(), SegmentIndex(pool)
    first.put(block(4, name="physical"))
    index.insert("name", "physical", 0, 4)
    assert "name" in index
    first.release()
    assert "name" not in index and len(index) == 1 and index.find("name", second) is None
    assert len(index) == 0 and index.physical("name") is None


def test_a_segment_hit_takes_a_reference_to_its_block(pool: BlockPool) -> None:
    first, second, index = pool.lease(), pool.lease(), SegmentIndex(pool)
    first.put(block(4, name="physical"))
    index.insert("name", "physical", 0, 2)
    assert pool.references["physical"] == 1
    index.find("name", second)
    first.release()
    assert index.find("name", second) is not None
    second.release()
    assert index.find("name", second) is None


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
