"""Tiers: moving down and up, pins, time to live, and quotas."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock
from memory.kv_cache.mapped_rows import DamagedError
from memory.storage.disk import Disk
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers
from tests.memory.storage.disks import flip, only_file

NAMES = "abcdefgh"


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def block(name: str, tokens: int = 1, version: int = 0, namespace: str = "") -> KVBlock:
    k = torch.full((2, 1, tokens, 8), float(100 * version + ord(name[0])))
    return KVBlock(name, k, -k, namespace)


SIZE = block("a").nbytes


def rams(*sizes: int, **knobs: Any) -> Tiers:
    """Tiers of room for so many blocks of one token each."""
    return Tiers([Ram(budget_bytes=size * SIZE) for size in sizes], **knobs)


def test_a_device_tier_stands_in_front_of_the_hosts(tmp_path: Path) -> None:
    """The host stands in for the device, and a device without memory for the host: what moves down changes places."""
    tiers = Tiers([Ram(budget_bytes=SIZE, device=None), Quantized(budget_bytes=None, device="meta")])
    tiers.put(block("a"))
    assert tiers.get("a").k.device.type == "cpu"
    tiers.put(block("b"))
    below = tiers.tiers[1].get("a")
    assert below.k.device.type == below.v.device.type == "meta" and below.nbytes < SIZE
    assert tiers.get("b").k.device.type == "cpu"


def held(tiers: Tiers, level: int) -> list[str]:
    return [entry.key for entry in tiers.tiers[level].entries()]


def consistent(tiers: Tiers) -> None:
    """The books agree with what rests in the tiers, and no tier is too full."""
    for tier in tiers.tiers:
        stored = [tier.peek(entry.key).entry for entry in tier.ledger]
        assert stored == tier.entries() == list(tier.ledger)
        assert sum(entry.nbytes for entry in stored) == tier.ledger.nbytes == tier.stats()["bytes"]
        assert tier.budget_bytes is None or tier.ledger.nbytes <= tier.budget_bytes
        assert tier.stats()["evicted"] == tier.stats()["rejected"] == 0, "room was made before"
    assert {entry.key for entry in tiers._ages} == {entry.key for entry in tiers.entries()}


def test_the_least_recently_used_move_down_then_out_and_up_when_read() -> None:
    tiers = rams(2, 3)
    for name in "abcde":
        tiers.put(block(name))
    assert (held(tiers, 0), held(tiers, 1)) == (["d", "e"], ["a", "b", "c"])
    assert torch.equal(tiers.get("a").k, block("a").k)
    assert (held(tiers, 0), sorted(held(tiers, 1))) == (["e", "a"], ["b", "c", "d"]), "a made room for d"
    tiers.put(block("f"))
    assert (held(tiers, 0), tiers.contains("b")) == (["a", "f"], False)
    stats = tiers.stats()
    assert {key: stats[key] for key in ("blocks", "bytes", "hits", "misses", "evicted", "promoted", "demoted")} == {
        "blocks": 5, "bytes": 5 * SIZE, "hits": 1, "misses": 0, "evicted": 1, "promoted": 1, "demoted": 5,
    }  # fmt: skip
    assert (stats["tier0_blocks"], stats["tier1_bytes"]) == (2, 3 * SIZE)
    assert torch.equal(tiers.get("c").v, -block("c").k)
    assert tiers.get("b") is None
    consistent(tiers)


def test_a_copy_below_stays_while_there_is_room_and_goes_first() -> None:
    tiers = rams(1, 4)
    for name in "abcd":
        tiers.put(block(name))
    tiers.get("a")
    assert (held(tiers, 0), sorted(held(tiers, 1)), tiers.stats()["blocks"]) == (["a"], ["a", "b", "c", "d"], 4)
    tiers.put(block("e"))
    tiers.put(block("f"))
    assert all(tiers.contains(name) for name in "abcdef") is False
    assert tiers.stats()["evicted"] == 1, "six blocks, room for five"
    tiers.delete("a")
    assert not tiers.contains("a")
    consistent(tiers)


def test_a_block_no_tier_can_hold_is_rejected_and_one_too_big_for_the_first_goes_on() -> None:
    tiers = rams(2, 4)
    tiers.put(block("a", 5))
    tiers.put(block("b", 3))
    assert tiers.stats()["rejected"] == 1 and not tiers.contains("a")
    assert (held(tiers, 0), held(tiers, 1)) == ([], ["b"])
    assert tiers.get("b") is not None and held(tiers, 0) == []
    tiers.put(block("b", 5))
    assert not tiers.contains("b"), "what it replaces is gone, too: it would be stale"


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
def test_tiers_serve_only_blocks_that_a_dictionary_has(
    calls: list[tuple[str, str, int, str]], sizes: tuple[int, ...], ttl: float | None
) -> None:
    """Blocks may be lost for want of room, never to age too early, never to be stale, never if pinned."""
    clock = Clock()
    tiers = rams(*sizes, ttl_seconds=ttl, clock=clock, quotas={"x": 0.3, "y": 0.5})
    model: dict[str, tuple[KVBlock, float]] = {}
    pinned: set[str] = set()
    for version, (call, name, tokens, namespace) in enumerate(calls):
        before = {n for n in pinned if tiers.contains(n)}
        if call == "put":
            model[name] = block(name, tokens, version, namespace), clock.now
            tiers.put(model[name][0])
            before -= {name}
        elif call == "delete":
            model.pop(name, None)
            tiers.delete(name)
            before -= {name}
        elif call == "wait":
            clock.now += tokens
        elif call in ("pin", "unpin"):
            getattr(tiers, call)(name)
            (pinned.add if call == "pin" else pinned.discard)(name)
            before &= pinned
        found = tiers.get(name) if call == "get" else None
        if found is not None:
            assert torch.equal(found.k, model[name][0].k) and found.namespace == model[name][0].namespace
        for n in NAMES:
            young = ttl is None or n in pinned or (n in model and clock.now - model[n][1] < ttl)
            assert not tiers.contains(n) or (n in model and young)
        assert all(tiers.contains(n) for n in before), "pinned blocks stay"
        consistent(tiers)
    assert tiers.stats()["blocks"] <= len(model)


@given(st.lists(st.tuples(st.sampled_from(["put", "put", "get"]), st.sampled_from(NAMES)), min_size=12, max_size=60))
@settings(max_examples=150)
def test_the_least_recently_used_is_evicted_once_all_tiers_are_full(calls: list[tuple[str, str]]) -> None:
    """Without pins, quotas and sizes two tiers hold what one of both rooms would."""
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
        assert {n for n in NAMES if tiers.contains(n)} == set(model)
        assert held(tiers, 0) == list(model)[-2:]


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
            tiers.put(block(name, tokens, namespace=owner))
        else:
            tiers.get(name)
        for old, tier in zip(before, tiers.tiers, strict=True):
            for other in {"x", "y"} - {owner}:
                assert tier.ledger.shares[other] >= min(old[other], quotas[other] * tier.budget_bytes)
        consistent(tiers)


def test_a_quota_is_reclaimed_from_others() -> None:
    tiers = rams(4, quotas={"x": 0.5})
    for name in "efgh":
        tiers.put(block(name, namespace="z"))
    for name in "abc":
        tiers.put(block(name, namespace="x"))
    assert held(tiers, 0) == ["h", "a", "b", "c"], "beyond its quota it is one of all"
    for name in "efg":
        tiers.put(block(name, namespace="z"))
    assert held(tiers, 0) == ["b", "c", "f", "g"], "two of four are its own"
    tiers.put(block("d", namespace="x"))
    assert held(tiers, 0) == ["c", "f", "g", "d"]


def test_pins_hold_a_tier_and_leave_the_rest_to_others() -> None:
    tiers = rams(2, 2, pins=["a"])
    for name in "abcdef":
        tiers.put(block(name))
    assert held(tiers, 0) == ["a", "f"]
    tiers.pin("f")
    tiers.put(block("g"))
    assert held(tiers, 0) == ["a", "f"] and held(tiers, 1)[-1] == "g"
    tiers.delete("a")
    assert not tiers.contains("a"), "a pin keeps from pressure, not from being deleted"


def test_old_blocks_are_missing_and_removed_unless_they_are_pinned() -> None:
    clock = Clock()
    tiers = rams(2, 4, ttl_seconds=10, clock=clock, pins=["b"])
    for name in "abc":
        tiers.put(block(name))
        clock.now += 4
    assert tiers.get("a") is None and not tiers.contains("a") and tiers.contains("b")
    assert tiers.get("c") is not None, "an answer makes a block no younger"
    clock.now += 8
    assert not tiers.contains("c") and tiers.contains("b")
    assert (tiers.stats()["expired"], tiers.stats()["blocks"]) == (2, 1)
    tiers.unpin("b")
    assert tiers.get("b") is None and tiers.stats()["expired"] == 3
    consistent(tiers)


# -- tiers of several kinds ------------------------------------------------------------------------------------------


def on_disk(folder: Path, clock: Clock, rooms: tuple[int, int] = (2, 8), **knobs: Any) -> Tiers:
    disk = Disk(folder, budget_bytes=rooms[1] * SIZE)
    tiers = Tiers([Ram(budget_bytes=rooms[0] * SIZE), disk], clock=clock, **knobs)
    tiers.open("model")
    return tiers


def test_a_restarted_process_finds_the_blocks_of_all_tiers(tmp_path: Path) -> None:
    clock = Clock()
    tiers = on_disk(tmp_path, clock, ttl_seconds=100)
    for name in "abcde":
        tiers.put(block(name, namespace=f"agent_{name}"))
        clock.now += 10
    tiers.flush()
    assert tiers.capabilities.persists and tiers.capabilities.exact
    assert (held(tiers, 0), sorted(held(tiers, 1))) == (["d", "e"], list("abcde"))
    again = on_disk(tmp_path, clock, ttl_seconds=100)
    assert [again.contains(name) for name in "abcdef"] == [True] * 5 + [False]
    assert again.verify("e") and not again.verify("f")
    found = again.get("e")  # which has been read, so it is promoted
    assert torch.equal(found.k[:], block("e").k) and found.namespace == "agent_e" and held(again, 0) == ["e"]
    consistent(again)
    clock.now += 65
    assert [again.contains(name) for name in "abc"] == [False, False, True], "their age went on"
    assert again.stats()["expired"] == 2


def test_a_flush_stores_the_most_recently_used_if_not_all_fit(tmp_path: Path) -> None:
    clock = Clock()
    tiers = on_disk(tmp_path, clock, rooms=(3, 2))
    for name in "abcde":
        tiers.put(block(name))
    assert [tiers.contains(name) for name in "abcde"] == [True] * 5
    tiers.flush()
    assert held(tiers, 0) == ["c", "d", "e"]
    again = on_disk(tmp_path, clock, rooms=(3, 2))
    assert [again.contains(name) for name in "abcde"] == [False, False, False, True, True]
    tiers.put(block("f"))
    assert tiers.contains("c"), "copies on the disk make room for what has none"
    consistent(tiers)


def test_damage_on_the_disk_is_a_miss_of_the_tiers(tmp_path: Path) -> None:
    tiers = on_disk(tmp_path, Clock())
    for name in "abc":
        tiers.put(block(name))
    tiers.flush()
    flip(only_file(tmp_path), 8 * only_file(tmp_path).stat().st_size - 1)
    again = on_disk(tmp_path, Clock())
    with pytest.raises(DamagedError):
        again.get("a").v[:]
    assert again.get("a") is None and not again.verify("b") and not again.contains("b")
    with pytest.raises(DamagedError):
        again.get("c").v[1]
    assert again.stats()["promoted"] == 0
    assert again.tiers[1].stats()["corrupt"] == 3
    again.put(block("a"))
    assert torch.equal(again.get("a").k, block("a").k)


@pytest.mark.parametrize("bits", [None, 8])
def test_blocks_are_copied_up_once_they_have_been_read(tmp_path: Path, bits: int | None) -> None:
    def tiers() -> Tiers:
        made = Tiers([Ram(budget_bytes=4 * SIZE), Disk(tmp_path, bits=bits)])
        made.open("model")
        return made

    first = tiers()
    first.put(block("a"))
    first.flush()
    again = tiers()
    for layer in range(2):
        found = again.get("a")
        assert not found.at_hand and held(again, 0) == [], "it is served from the disk, and streams"
        assert error(found.k[layer], block("a").k[layer]) < 0.01
    assert again.get("a").at_hand and held(again, 0) == ["a"] and again.stats()["promoted"] == 1
    file = {x.untyped_storage().data_ptr() for x in again.tiers[1]._pages._rows.values()}
    resting = again.get("a").k
    memory = resting.pieces[0].codes if bits else resting
    assert again.get("a").settled().k is resting and memory.untyped_storage().data_ptr() not in file
    consistent(again)


def test_a_damaged_block_does_not_move_down(tmp_path: Path) -> None:
    def tiers() -> Tiers:
        made = Tiers([Disk(tmp_path, budget_bytes=SIZE), Ram()])
        made.open("model")
        return made

    first = tiers()
    first.put(block("a"))
    first.flush()
    flip(only_file(tmp_path), 8 * only_file(tmp_path).stat().st_size - 1)
    again = tiers()
    again.put(block("b"))
    assert not again.contains("a") and again.get("a") is None and torch.equal(again.get("b").k, block("b").k)
    assert (again.stats()["evicted"], again.stats()["demoted"]) == (1, 0)
    consistent(again)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def test_a_block_is_rounded_once_on_its_way_through_packing_tiers(tmp_path: Path) -> None:
    """Exact above, packed below: the room of a tier is that of what rests in it."""
    disk = Disk(tmp_path, bits=8)
    middle = Quantized(bits=8, budget_bytes=3 * Quantized(bits=8).form(block("a", 8)).nbytes)
    tiers = Tiers([Ram(budget_bytes=8 * SIZE), middle, disk])
    tiers.open("model")
    generator = torch.Generator().manual_seed(0)
    blocks = {name: torch.randn(2, 2, 1, 8, 8, generator=generator) for name in NAMES}
    for name, x in blocks.items():
        tiers.put(KVBlock(name, *x))
    assert [len(tier.entries()) for tier in tiers.tiers] == [1, 3, 4]
    assert not tiers.capabilities.exact
    consistent(tiers)
    for _ in range(3):
        for name, x in blocks.items():
            found = tiers.get(name)
            once = Quantized(bits=8).form(KVBlock(name, *x))
            assert torch.equal(found.k[:], x[0]) or torch.equal(found.k[:], once.k[:])
        tiers.flush()
    consistent(tiers)


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"tiers": []}, "tiers is empty"),
        ({"tiers": [Tiers([Ram()])]}, "Tiers is no tier"),
        ({"tiers": [Quantized(), Ram()]}, "tier Ram would take for exact what Quantized above it has rounded"),
        ({"tiers": [Ram()], "quotas": {"a": 0.7, "b": 0.7}}, "'b': 0.7} are shares"),
        ({"tiers": [Ram()], "quotas": {"a": -0.1}}, "use 0 or more"),
        ({"tiers": [Ram()], "ttl_seconds": 0}, "ttl_seconds=0"),
    ],
)
def test_senseless_tiers_are_refused(knobs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Tiers(**knobs)


def test_tiers_adopt_blocks_that_were_stored_before() -> None:
    ram = Ram(budget_bytes=2 * SIZE)
    ram.put(replace(block("a"), namespace="x"))
    tiers = Tiers([ram, Ram(budget_bytes=None)])
    assert tiers.contains("a") and tiers.stats()["blocks"] == 1
    for name in "bcd":
        tiers.put(block(name))
    assert held(tiers, 1) == ["a", "b"]
    consistent(tiers)
