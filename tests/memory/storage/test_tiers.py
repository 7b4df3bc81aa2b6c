"""Tiers of storages: demotion, promotion, pins, time to live, and quotas."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.kv_cache.block import KVBlock
from memory.kv_cache.packed_rows import DamagedError
from memory.stages import Storage
from memory.storage.disk import Disk
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers
from tests.memory.storage import disks
from tests.memory.storage.disks import error, flip, only_file
from tests.waiting import FakeTime

NAMES = "abcdefgh"


def block(name: str, tokens: int = 1, version: int = 0, namespace: str = "") -> KVBlock:
    return replace(disks.block(name, tokens, version, namespace=namespace), created=0.0)


def start_clock() -> FakeTime:
    clock = FakeTime()
    clock.sleep(1000)  # 0 means no creation time
    return clock


SIZE = block("a").nbytes


def rams(*sizes: int, **knobs: Any) -> Tiers:
    return Tiers([Ram(budget_bytes=size * SIZE) for size in sizes], **knobs)


def put(tiers: Tiers, names: str, **knobs: Any) -> None:
    for name in names:
        tiers.put(block(name, **knobs))


def test_blocks_move_between_device_and_host(tmp_path: Path) -> None:
    """The CPU takes the place of the device, and the meta device that of the host."""
    tiers = Tiers([Ram(budget_bytes=SIZE, device=None), Quantized(budget_bytes=None, device="meta")])
    tiers.put(block("a"))
    assert tiers.get("a").k.device.type == "cpu"
    tiers.put(block("b"))
    below = tiers.tiers[1].get("a")
    assert below.k.device.type == below.v.device.type == "meta" and below.nbytes < SIZE
    assert tiers.get("b").k.device.type == "cpu"


def keys_at(tiers: Tiers, level: int) -> list[str]:
    return [entry.key for entry in tiers.tiers[level].entries()]


def consistent(tiers: Tiers) -> None:
    for tier in tiers.tiers:
        stored = [tier.peek(entry.key).entry for entry in tier.ledger]
        assert stored == tier.entries() == list(tier.ledger)
        assert sum(entry.nbytes for entry in stored) == tier.ledger.nbytes == tier.stats()["bytes"]
        assert tier.budget_bytes is None or tier.ledger.nbytes <= tier.budget_bytes
        assert tier.stats()["evicted"] == tier.stats()["rejected"] == 0, "tiers make room before a put"
    assert {entry.key for entry in tiers._by_time} == {entry.key for entry in tiers.entries()}


def test_blocks_are_demoted_evicted_and_promoted_by_use() -> None:
    tiers = rams(2, 3)
    put(tiers, "abcde")
    assert (keys_at(tiers, 0), keys_at(tiers, 1)) == (["d", "e"], ["a", "b", "c"])
    assert torch.equal(tiers.get("a").k, block("a").k)
    assert (keys_at(tiers, 0), sorted(keys_at(tiers, 1))) == (["e", "a"], ["b", "c", "d"]), "d was demoted for a"
    tiers.put(block("f"))
    assert (keys_at(tiers, 0), tiers.contains("b")) == (["a", "f"], False)
    stats = tiers.stats()
    assert {key: stats[key] for key in ("blocks", "bytes", "hits", "misses", "evicted", "promoted", "demoted")} == {
        "blocks": 5, "bytes": 5 * SIZE, "hits": 1, "misses": 0, "evicted": 1, "promoted": 1, "demoted": 5,
    }  # fmt: skip
    assert (stats["tier0_blocks"], stats["tier1_bytes"]) == (2, 3 * SIZE)
    assert torch.equal(tiers.get("c").v, block("c").v) and tiers.get("b") is None
    consistent(tiers)


def test_a_lower_copy_is_evicted_first() -> None:
    tiers = rams(1, 4)
    put(tiers, "abcd")
    tiers.get("a")
    assert (keys_at(tiers, 0), sorted(keys_at(tiers, 1)), tiers.stats()["blocks"]) == (["a"], ["a", "b", "c", "d"], 4)
    put(tiers, "ef")
    assert all(tiers.contains(name) for name in "abcdef") is False
    assert tiers.stats()["evicted"] == 1, "six blocks, room for five"
    tiers.delete("a")
    assert not tiers.contains("a")
    consistent(tiers)


def test_a_block_goes_to_the_first_tier_that_can_hold_it() -> None:
    tiers = rams(2, 4)
    tiers.put(block("a", tokens=5))
    tiers.put(block("b", tokens=3))
    assert tiers.stats()["rejected"] == 1 and not tiers.contains("a")
    assert (keys_at(tiers, 0), keys_at(tiers, 1)) == ([], ["b"])
    assert tiers.get("b") is not None and keys_at(tiers, 0) == []
    tiers.put(block("b", tokens=5))
    assert not tiers.contains("b"), "the stale block must be deleted"


CALLS = st.tuples(
    st.sampled_from(["put", "put", "get", "delete", "pin", "unpin", "wait", "contains"]),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.sampled_from(["", "x", "y"]),
)


@given(
    st.lists(CALLS, min_size=10, max_size=60), st.sampled_from([(4,), (2, 5), (1, 2, 3)]), st.sampled_from([None, 5.0])
)
@settings(max_examples=250)
def test_tiers_equal_a_dictionary(
    calls: list[tuple[str, str, int, str]], sizes: tuple[int, ...], ttl: float | None
) -> None:
    """Blocks may be evicted for room, but never while pinned; none is stale or expires early."""
    clock = start_clock()
    tiers = rams(*sizes, ttl_seconds=ttl, clock=clock, quotas={"x": 0.3, "y": 0.5})
    model: dict[str, tuple[KVBlock, float]] = {}
    pinned: set[str] = set()
    for version, (call, name, tokens, namespace) in enumerate(calls):
        before = {n for n in pinned if tiers.contains(n)}
        if call == "put":
            model[name] = block(name, tokens, version, namespace), clock.elapsed
            tiers.put(model[name][0])
            before -= {name}
        elif call == "delete":
            model.pop(name, None)
            tiers.delete(name)
            before -= {name}
        elif call == "wait":
            clock.sleep(tokens)
        elif call in ("pin", "unpin"):
            getattr(tiers, call)(name)
            (pinned.add if call == "pin" else pinned.discard)(name)
            before &= pinned
        stored = tiers.get(name) if call == "get" else None
        if stored is not None:
            assert torch.equal(stored.k, model[name][0].k) and stored.namespace == model[name][0].namespace
        for n in NAMES:
            young = ttl is None or n in pinned or (n in model and clock.elapsed - model[n][1] < ttl)
            assert not tiers.contains(n) or (n in model and young)
        assert all(tiers.contains(n) for n in before), "pinned blocks must stay"
        consistent(tiers)
    assert tiers.stats()["blocks"] <= len(model)


@given(st.lists(st.tuples(st.sampled_from(["put", "put", "get"]), st.sampled_from(NAMES)), min_size=12, max_size=60))
@settings(max_examples=150)
def test_the_least_recently_used_is_evicted_once_all_tiers_are_full(calls: list[tuple[str, str]]) -> None:
    """Without pins and quotas two tiers hold the same blocks as one of their total size."""
    tiers, model = rams(2, 3), OrderedDict()
    for call, name in calls:
        if call == "put":
            model.pop(name, None)
            model[name] = block(name)
            tiers.put(model[name])
            while len(model) > 5:
                model.popitem(last=False)
        else:
            assert (tiers.get(name) is None) == (name not in model)
            if name in model:
                model.move_to_end(name)
        assert {n for n in NAMES if tiers.contains(n)} == set(model) and keys_at(tiers, 0) == list(model)[-2:]


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "put", "get"]), st.sampled_from(NAMES), st.integers(1, 3)),
        min_size=10,
        max_size=70,
    )
)
@settings(max_examples=250)
def test_no_namespace_is_evicted_below_its_quota_by_others(calls: list[tuple[str, str, int]]) -> None:
    quotas = {"x": 0.25, "y": 0.5}
    tiers = rams(4, 8, quotas=quotas)
    for call, name, tokens in calls:
        owner = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}.get(name, "z")
        tiers.delete(name) if call == "put" else None
        before = [Counter(tier.ledger.shares) for tier in tiers.tiers]
        if call == "put":
            tiers.put(block(name, tokens=tokens, namespace=owner))
        else:
            tiers.get(name)
        for old, tier in zip(before, tiers.tiers, strict=True):
            for owner_name in {"x", "y"} - {owner}:
                assert tier.ledger.shares[owner_name] >= min(old[owner_name], quotas[owner_name] * tier.budget_bytes)
        consistent(tiers)


def test_a_quota_is_reclaimed_from_others() -> None:
    tiers = rams(4, quotas={"x": 0.5})
    put(tiers, "efgh", namespace="z")
    put(tiers, "abc", namespace="x")
    assert keys_at(tiers, 0) == ["h", "a", "b", "c"], "above its quota a namespace has no priority"
    put(tiers, "efg", namespace="z")
    assert keys_at(tiers, 0) == ["b", "c", "f", "g"], "two of four are its quota"
    tiers.put(block("d", namespace="x"))
    assert keys_at(tiers, 0) == ["c", "f", "g", "d"]


def test_pinned_blocks_stay_in_their_tier() -> None:
    tiers = rams(2, 2, pins=["a"])
    put(tiers, "abcdef")
    assert keys_at(tiers, 0) == ["a", "f"]
    tiers.pin("f")
    tiers.put(block("g"))
    assert keys_at(tiers, 0) == ["a", "f"] and keys_at(tiers, 1)[-1] == "g"
    tiers.delete("a")
    assert not tiers.contains("a"), "a pinned block can be deleted"


def test_old_blocks_expire_unless_pinned() -> None:
    clock = start_clock()
    tiers = rams(2, 4, ttl_seconds=10, clock=clock, pins=["b"])
    for name in "abc":
        tiers.put(block(name))
        clock.sleep(4)
    assert tiers.get("a") is None and not tiers.contains("a") and tiers.contains("b")
    assert tiers.get("c") is not None, "a hit does not renew a block"
    clock.sleep(8)
    assert not tiers.contains("c") and tiers.contains("b")
    assert (tiers.stats()["expired"], tiers.stats()["blocks"]) == (2, 1)
    tiers.unpin("b")
    assert tiers.get("b") is None and tiers.stats()["expired"] == 3
    consistent(tiers)


def open_tiers(*tiers: Storage, **knobs: Any) -> Tiers:
    storage = Tiers(tiers, **knobs)
    storage.open("model")
    return storage


def on_disk(folder: Path, clock: FakeTime, rooms: tuple[int, int] = (2, 8), **knobs: Any) -> Tiers:
    disk = Disk(folder, budget_bytes=rooms[1] * SIZE)
    return open_tiers(Ram(budget_bytes=rooms[0] * SIZE), disk, clock=clock, **knobs)


def test_a_restarted_process_finds_the_blocks_of_all_tiers(tmp_path: Path) -> None:
    clock = start_clock()
    tiers = on_disk(tmp_path, clock, ttl_seconds=100)
    for name in "abcde":
        tiers.put(block(name, namespace=f"agent_{name}"))
        clock.sleep(10)
    tiers.flush()
    assert tiers.capabilities.persists and tiers.capabilities.exact
    assert (keys_at(tiers, 0), sorted(keys_at(tiers, 1))) == (["d", "e"], list("abcde"))
    again = on_disk(tmp_path, clock, ttl_seconds=100)
    assert [again.contains(name) for name in "abcdef"] == [True] * 5 + [False]
    assert again.verify("e") and not again.verify("f")
    stored = again.get("e")  # verified, so it is promoted
    assert torch.equal(stored.k[:], block("e").k) and stored.namespace == "agent_e" and keys_at(again, 0) == ["e"]
    consistent(again)
    clock.sleep(65)
    assert [again.contains(name) for name in "abc"] == [False, False, True], "ages continue after a restart"
    assert again.stats()["expired"] == 2


def test_a_flush_stores_the_most_recently_used_that_fit(tmp_path: Path) -> None:
    clock = start_clock()
    tiers = on_disk(tmp_path, clock, rooms=(3, 2))
    put(tiers, "abcde")
    assert [tiers.contains(name) for name in "abcde"] == [True] * 5
    tiers.flush()
    assert keys_at(tiers, 0) == ["c", "d", "e"]
    again = on_disk(tmp_path, clock, rooms=(3, 2))
    assert [again.contains(name) for name in "abcde"] == [False, False, False, True, True]
    tiers.put(block("f"))
    assert tiers.contains("c"), "blocks with a copy on the disk are evicted first"
    consistent(tiers)


def test_damage_on_the_disk_is_a_miss_of_the_tiers(tmp_path: Path) -> None:
    tiers = on_disk(tmp_path, start_clock())
    put(tiers, "abc")
    tiers.flush()
    flip(only_file(tmp_path), 8 * only_file(tmp_path).stat().st_size - 1)
    again = on_disk(tmp_path, start_clock())
    with pytest.raises(DamagedError):
        again.get("a").v[:]
    assert again.get("a") is None and not again.verify("b") and not again.contains("b")
    with pytest.raises(DamagedError):
        again.get("c").v[2]
    assert again.stats()["promoted"] == 0 and again.tiers[1].stats()["corrupt"] == 3
    again.put(block("a"))
    assert torch.equal(again.get("a").k, block("a").k)


@pytest.mark.parametrize("bits", [None, 8])
def test_blocks_are_promoted_once_all_layers_were_read(tmp_path: Path, bits: int | None) -> None:
    def tiers() -> Tiers:
        return open_tiers(Ram(budget_bytes=4 * SIZE), Disk(tmp_path, bits=bits))

    first = tiers()
    first.put(block("a"))
    first.flush()
    again = tiers()
    for layer in range(3):
        stored = again.get("a")
        assert not stored.is_loaded and keys_at(again, 0) == [], "served from the disk layer by layer"
        assert error(stored.k[layer], block("a").k[layer]) < 0.01
    assert again.get("a").is_loaded and keys_at(again, 0) == ["a"] and again.stats()["promoted"] == 1
    file = {x.untyped_storage().data_ptr() for x in again.tiers[1]._pages._rows.values()}
    resting = again.get("a").k
    memory = resting.pieces[0].codes if bits else resting
    assert again.get("a").in_memory().k is resting and memory.untyped_storage().data_ptr() not in file
    consistent(again)


def test_a_damaged_block_is_not_demoted(tmp_path: Path) -> None:
    def tiers() -> Tiers:
        return open_tiers(Disk(tmp_path, budget_bytes=SIZE), Ram())

    first = tiers()
    first.put(block("a"))
    first.flush()
    flip(only_file(tmp_path), 8 * only_file(tmp_path).stat().st_size - 1)
    again = tiers()
    again.put(block("b"))
    assert not again.contains("a") and again.get("a") is None and torch.equal(again.get("b").k, block("b").k)
    assert (again.stats()["evicted"], again.stats()["demoted"]) == (1, 0)
    consistent(again)


def test_a_block_is_rounded_once_on_its_way_through_packing_tiers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = {name: KVBlock(name, *torch.randn(2, 2, 1, 8, 8, generator=generator)) for name in NAMES}
    packed = {name: Quantized(bits=8).stored_form(b) for name, b in blocks.items()}
    middle = Quantized(bits=8, budget_bytes=3 * packed["a"].nbytes)
    tiers = open_tiers(Ram(budget_bytes=blocks["a"].nbytes), middle, Disk(tmp_path, bits=8))
    for b in blocks.values():
        tiers.put(b)
    assert [len(tier.entries()) for tier in tiers.tiers] == [1, 3, 4] and not tiers.capabilities.exact
    consistent(tiers)
    for _ in range(3):
        for name in NAMES:
            stored = tiers.get(name)
            assert torch.equal(stored.k[:], blocks[name].k) or torch.equal(stored.k[:], packed[name].k[:])
        tiers.flush()
    consistent(tiers)


def test_tiers_adopt_blocks_that_were_stored_before() -> None:
    ram = Ram(budget_bytes=2 * SIZE)
    ram.put(block("a", namespace="x"))
    tiers = Tiers([ram, Ram(budget_bytes=None)])
    assert tiers.contains("a") and tiers.stats()["blocks"] == 1
    put(tiers, "bcd")
    assert keys_at(tiers, 1) == ["a", "b"]
    consistent(tiers)
