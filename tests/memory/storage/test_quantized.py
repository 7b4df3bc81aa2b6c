"""Storages in memory, plain and quantized: eviction, bytes, rounding, and unpacking of the indexed rows only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.engine.base import Engine
from memory.kv_cache.block_store import identity
from memory.kv_cache.key_boxes import KeyBoxes
from memory.kv_cache.packed_rows import PackedRows
from memory.kv_cache.quantization import Axis, Packed
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from tests.laws.prompts import Prompt, shrinking
from tests.laws.test_loading import STAGES
from tests.memory.storage import disks
from tests.memory.storage.disks import error

SIZE = disks.block("x", 1).nbytes


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.sampled_from(["put", "get", "delete"]))))
@settings(max_examples=100)
def test_ram_equals_a_list_in_order_of_use(calls: list[tuple[str, int, str]]) -> None:
    ram, order = Ram(budget_bytes=4 * SIZE), {}
    for name, tokens, call in calls:
        if call == "put":
            order.pop(name, None)
            ram.put(disks.block(name, tokens))
            order[name] = tokens
            while sum(order.values()) > 4:
                del order[next(iter(order))]
        elif call == "get":
            stored = ram.get(name)
            assert (stored is not None) == (name in order)
            if name in order:
                order[name] = order.pop(name)
        else:
            ram.delete(name)
            order.pop(name, None)
        stats = ram.stats()
        assert stats["bytes"] == SIZE * sum(order.values()) and stats["blocks"] == len(order)
        assert all(ram.contains(n) == (n in order) for n in "abcdef")


def test_layers_limits_and_counts() -> None:
    ram = Ram(budget_bytes=SIZE)
    ram.put(disks.block("big", 2))
    assert not ram.contains("big")
    ram.put(disks.block("a", 1))
    stored = ram.get("a")
    assert torch.equal(stored.k, disks.block("a", 1).k) and torch.equal(stored.v, disks.block("a", 1).v)
    assert ram.get("b") is None
    ram.put(disks.block("bb", 1))
    assert ram.stats() == {"blocks": 1, "bytes": SIZE, "hits": 1, "misses": 1, "evicted": 1, "rejected": 1}

    unlimited = Ram(budget_bytes=None)
    unlimited.put(disks.block("big", 100))
    assert unlimited.contains("big")
    packed = Quantized(budget_bytes=0)
    packed.put(disks.block("a"))
    assert packed.stats()["rejected"] == 1 and not packed.entries() and packed.get("a") is None


def test_identity_depends_on_every_part() -> None:
    names = {
        identity("m", (), (1, 2)), identity("n", (), (1, 2)), identity("m", (1,), (2,)), identity("m", (), (1, 2), "a"),
        identity("m", (1, 2), ()), identity("m", (), (2, 1)), identity("ma", (), (1, 2), ""), identity("m", (), (258,)),
    }  # fmt: skip
    assert len(names) == 8
    pinned = "8c4624ef048d94fe241c9b004ad8a43756caf5c32d1b302692401f3a7d76dd99"
    assert identity("m", [1], [2, 3], "n") == pinned  # so that a stored block hits after a restart


ALONG = get_args(Axis)
SHAPES = [(2, 2, 16), (3, 1, 80), (1, 6, 32), (2, 3, 4), (1, 1, 5)]


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    shapes: list[tuple[int, ...]] = []
    original = Packed.unpack

    def unpack(self: Packed, dtype: torch.dtype) -> torch.Tensor:
        shapes.append(self.shape)
        return original(self, dtype)

    monkeypatch.setattr(Packed, "unpack", unpack)
    return shapes


@pytest.mark.parametrize("keys", ALONG)
@pytest.mark.parametrize(("bits", "bound"), [(8, 0.004), (4, 0.07)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 20, 64, 77])
def test_rounding_is_within_bounds(tokens: int, shape: tuple[int, ...], bits: int, bound: float, keys: Axis) -> None:
    storage, put = Quantized(bits=bits, group=8, keys=keys), disks.block("a", tokens, shape=shape)
    storage.put(put)
    stored = storage.get(put.identity)
    assert stored.tokens == tokens and stored.k.shape == tuple(put.k.shape)
    for back, x in ((stored.k, put.k), (stored.v, put.v)):
        assert back[:].shape == x.shape and back[:].dtype == x.dtype
        assert tokens == 0 or error(back[:], x) < bound
    for layer, row in enumerate(zip(put.k, put.v, strict=True)):
        for back, x in zip((stored.k[layer], stored.v[layer]), row, strict=True):
            assert back.shape == x.shape and (tokens == 0 or error(back, x) < bound * x.abs().max())
    assert storage.stats()["bytes"] == stored.nbytes


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=4, max_size=4))),
    st.sampled_from(ALONG),
    st.sampled_from([4, 8]),
)
@settings(max_examples=150)
def test_a_part_is_the_same_numbers(sample: tuple[int, list[int]], keys: Axis, bits: int) -> None:
    tokens, edges = sample
    (a, b), (c, d) = sorted(edges[:2]), sorted(edges[2:])
    x = disks.block(str(tokens), tokens).k
    rows = PackedRows.of(x, Quantized(bits=bits, group=8, keys=keys).format, keys)
    whole = rows[:]
    assert torch.equal(rows[:, :, a:b], whole[:, :, a:b]) and torch.equal(rows[1, :, a:b], whole[1, :, a:b])
    part = rows.narrow(2, a, b - a)
    assert part.shape == (*whole.shape[:2], b - a, whole.shape[3]) and torch.equal(part[:], whole[:, :, a:b])
    assert torch.equal(part[0:1, :, c:d], whole[0:1, :, a:b][:, :, c:d]) and part.nbytes <= rows.nbytes
    assert torch.equal(rows.index_select(0, torch.tensor([1, 0])), whole[[1, 0]])
    assert torch.equal(rows.to("cpu")[:], whole) and rows.device == x.device


@pytest.mark.parametrize(("bits", "share"), [(4, 0.29), (8, 0.54)])
@pytest.mark.parametrize("keys", ALONG)
def test_the_budget_counts_packed_bytes(bits: int, share: float, keys: Axis) -> None:
    half = [disks.block(name, 64, dtype=torch.float16, shape=(2, 4, 16)) for name in "abcdefghij"]
    full = sum(b.nbytes for b in half[:8])
    storage = Quantized(bits=bits, keys=keys, budget_bytes=int(share * full))
    for row in half[:8]:
        storage.put(row)
    assert storage.stats()["blocks"] == 8 and storage.stats()["bytes"] <= share * full
    for row in half[8:]:
        storage.put(row)
    assert storage.stats()["evicted"] == 2 and not storage.contains(half[0].identity)


def test_packing_by_channel_isolates_large_channels() -> None:
    errors = {}
    for tokens in (64, 77, 9):
        x = disks.block("a", tokens, shape=(2, 2, 16)).k
        x[:, :, :, 3] += 40
        for keys in ALONG:
            rows = PackedRows.of(x, Quantized(group=16, keys=keys).format, keys)
            errors[tokens, keys] = float((rows[:] - x).abs().mean())
    assert errors[64, "channel"] < errors[64, "token"] / 5
    assert errors[64, "channel"] < errors[77, "channel"] < errors[77, "token"] / 2, "13 of 77 rows go by token"
    assert errors[9, "channel"] == errors[9, "token"]


def test_a_packed_block_is_not_packed_again() -> None:
    first, second = Quantized(), Quantized(bits=8)
    first.put(disks.block("a"))
    rests = first.get("a")
    second.put(rests)
    assert second.get("a") is rests


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_active_rows_are_not_unpacked(
    stage: type, unpacked: list, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With BRIDGE = 1 only the inactive rows are loaded, without active rows in gaps between them."""
    monkeypatch.setattr("memory.prompt.layout.BRIDGE", 1)
    prompt, storage = Prompt.random(seed=3), Quantized(bits=8, group=8)
    units = [[token % engine.info.vocab for token in unit] for unit in prompt.units]
    prompt = Prompt(tuple(map(tuple, units)), tuple(token % engine.info.vocab for token in prompt.query))
    for number, block_of in enumerate(prompt.blocks(engine)):
        storage.put(replace(block_of, identity=str(number)))
    layout = prompt.layout([storage.get(str(number)) for number in range(len(prompt.units))])
    script = shrinking(layout, engine.info.layers)
    engine.prefill(layout, script, stage())
    inactive = sum(layout.query - int((rows < layout.query).sum()) for rows in script.rows)
    assert 0 < inactive < layout.query * engine.info.layers
    assert sum(shape[0] * shape[-2] for shape in unpacked) == 2 * inactive, "keys and values of each, once"


def test_boxes_and_views_of_packed_blocks(unpacked: list) -> None:
    storage, put = Quantized(bits=8, group=8), disks.block("a", 24)
    storage.put(put)
    stored = storage.get(put.identity)
    boxes = KeyBoxes.around([stored.k], [1])
    assert [shape[0] for shape in unpacked] == [1], "only the layer of the boxes"
    assert error(boxes.low[0, :, 0], put.k[1].amin(1)) < 0.01
    part = stored.part(5, 12)
    assert isinstance(part.k, PackedRows) and part.identity.endswith("[5:12]")
    assert torch.equal(part.v[:], stored.v[:][:, :, 5:12])
