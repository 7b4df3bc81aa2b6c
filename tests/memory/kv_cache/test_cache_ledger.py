"""Cache ledger: order of use, shares, expiry and victims."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from memory.kv_cache.cache_ledger import CacheLedger, Entry

CALLS = st.tuples(
    st.sampled_from(["add", "add", "touch", "make_oldest", "remove"]), st.sampled_from("abcde"), st.integers(0, 4)
)


def keys(entries: list[Entry] | CacheLedger[Entry]) -> str:
    return "".join(entry.key for entry in entries)


def ledger(*sizes: int) -> CacheLedger[Entry]:
    """Return entries a, b, ... of these bytes; a, c, e belong to x, the rest to y."""
    return CacheLedger(
        Entry(key, size, "xy"[i % 2], i) for i, (key, size) in enumerate(zip("abcdef", sizes, strict=False))
    )


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
        assert keys(books) == "".join(order) and len(books) == len(order) and books.nbytes == sum(order.values())
        assert [key in books for key in "abcde"] == [key in order for key in "abcde"]
        shares = Counter()
        for size in order.values():
            shares[size % 2] += size
        assert +books.shares == +shares


def test_victims_are_the_least_recently_used_that_free_enough() -> None:
    books = ledger(3, 1, 2, 4)
    assert [keys(books.victims(excess)) for excess in (-1, 0, 1, 3, 4, 99)] == ["", "", "a", "a", "ab", "abcd"]
    assert keys(books) == "abcd", "the choice changes nothing"


def test_a_rule_gets_the_remaining_share_of_the_owner() -> None:
    books = ledger(3, 1, 2, 4, 5)
    assert keys(books.victims(99, lambda entry, share: share > 5)) == "ac", "x has 10 bytes, then 7, then 5"
    assert keys(books.victims(99, lambda entry, share: share - entry.nbytes >= 4)) == "abc"


def test_a_second_rule_applies_when_the_first_frees_too_little() -> None:
    books = ledger(3, 1, 2, 4)
    rules = (lambda entry, _: entry.owner == "y", lambda entry, _: entry.key == "a")
    assert [keys(books.victims(excess, *rules)) for excess in (1, 5, 6, 99)] == ["b", "bd", "bda", "bda"]


def test_entries_expire_at_their_time() -> None:
    assert [keys(ledger(1, 1, 1).expired(latest)) for latest in (-1, 0, 1.5, 9)] == ["", "a", "ab", "abc"]
