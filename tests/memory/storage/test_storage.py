"""Memory storage, and the identity of blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock, identity
from memory.storage.ram import Ram


def block(name: str, tokens: int = 1) -> KVBlock:
    k = torch.full((2, 1, tokens, 4), float(len(name)))
    return KVBlock(name, k, -k)


SIZE = block("x").nbytes


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.sampled_from(["put", "get", "delete"]))))
@settings(max_examples=100)
def test_ram_equals_a_list_in_order_of_use(calls: list[tuple[str, int, str]]) -> None:
    ram, order = Ram(budget_bytes=4 * SIZE), {}
    for name, tokens, call in calls:
        if call == "put":
            order.pop(name, None)
            ram.put(block(name, tokens))
            order[name] = tokens
            while sum(order.values()) > 4:
                del order[next(iter(order))]
        elif call == "get":
            found = ram.get(name)
            assert (found is not None) == (name in order)
            if name in order:
                order[name] = order.pop(name)
        else:
            ram.delete(name)
            order.pop(name, None)
        stats = ram.stats()
        assert stats["bytes"] == SIZE * sum(order.values())
        assert stats["blocks"] == len(order)
        assert all(ram.contains(n) == (n in order) for n in "abcdef")


def test_layers_limits_and_counts() -> None:
    ram = Ram(budget_bytes=SIZE)
    ram.put(block("big", 2))
    assert not ram.contains("big")
    ram.put(block("a"))
    stored = ram.get("a")
    assert torch.equal(stored.k, block("a").k) and torch.equal(stored.v, block("a").v)
    assert ram.get("b") is None
    ram.put(block("bb"))
    assert ram.stats() == {"blocks": 1, "bytes": SIZE, "hits": 1, "misses": 1, "evicted": 1, "rejected": 1}
    with pytest.raises(ConfigError, match="-1"):
        Ram(budget_bytes=-1)
    unlimited = Ram(budget_bytes=None)
    unlimited.put(block("big", 100))
    assert unlimited.contains("big")


def test_identity_tells_everything_apart() -> None:
    names = {
        identity("m", (), (1, 2)), identity("n", (), (1, 2)), identity("m", (1,), (2,)), identity("m", (), (1, 2), "a"),
        identity("m", (1, 2), ()), identity("m", (), (2, 1)), identity("ma", (), (1, 2), ""), identity("m", (), (258,)),
    }  # fmt: skip
    assert len(names) == 8
    pinned = "8c4624ef048d94fe241c9b004ad8a43756caf5c32d1b302692401f3a7d76dd99"
    assert identity("m", [1], [2, 3], "n") == pinned  # a stored block must hit after a restart
