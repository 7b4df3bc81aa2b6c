"""The exact prefix index over slots: what it finds, and what it lets go of."""

from __future__ import annotations

from memory.kv_cache.paged import PagedCache
from memory.kv_cache.slot_prefix_index import SlotPrefixIndex
from tests.memory.kv_cache.test_kv_pool import BLOCK, PREFIX, Expected, append, make_pool


def test_blocks_that_share_a_slot_go_one_by_one() -> None:
    """Two transcripts of one request part within a block: their blocks must not keep each other alive."""
    pool = make_pool()
    index = SlotPrefixIndex(pool, 3, 12, "model")
    cache, expected = PagedCache(pool), Expected()
    named = []
    for tokens in ([1, 0, 1, 0], [0, 0]):
        append(cache, expected, tokens)
        named.append(index.names(expected.tokens, ""))
        index.insert(named[-1], cache.slot_map, cache.exact)
        cache.cut(1)
        expected.cut(1)
        pool.check_integrity()
    assert pool.used == 5 and index.slots.tolist().count(int(cache.slot_map[0])) == 2
    index.forget(named[0], cache.slots)
    pool.check_integrity()
    assert pool.used == 3 and index.match(named[1]).numel() == 3, "the other is whole"
    index.forget(named[1], cache.slots)
    pool.check_integrity()
    assert pool.used == 1 and not index.slots.numel()


def test_blocks_behind_a_deleted_one_are_deleted() -> None:
    pool = make_pool()
    index = SlotPrefixIndex(pool, BLOCK, PREFIX, "model")
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, [1, 0, 1, 0, 1, 1])
    names = index.names(expected.tokens, "")
    index.insert(names, cache.slot_map, cache.exact)
    index.forget(names[1:2], cache.slots)
    pool.check_integrity()
    assert index.slots.tolist() == cache.slot_map[:2].tolist()


def test_names_tell_models_namespaces_and_beginnings_apart() -> None:
    """Law 10: a prompt that is another one from its first token on hits nothing of what stands behind it."""
    pool = make_pool()
    one, other = (SlotPrefixIndex(pool, BLOCK, PREFIX, model) for model in ("model", "other"))
    tokens = [1, 0, 1, 1]
    names = [*one.names(tokens, ""), *one.names(tokens, "you"), *other.names(tokens, ""), *one.names([0, *tokens], "")]
    assert len(set(names)) == len(names) == 8
    assert one.names([*tokens, 1], "") == one.names(tokens, "")
    cache, expected = PagedCache(pool), Expected()
    append(cache, expected, tokens)
    one.insert(one.names(tokens, ""), cache.slot_map, 4)
    assert one.match(one.names([1, 0, 0, 1], "")).tolist() == cache.slot_map[:2].tolist()
    assert not one.match(one.names([0, 0, 1, 1], "")).numel()
