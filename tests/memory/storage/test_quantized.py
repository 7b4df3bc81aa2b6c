"""Quantized storage: rounding, bytes, and unpacking of the indexed rows only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.key_boxes import KeyBoxes
from memory.kv_cache.packed_rows import PackedRows
from memory.kv_cache.quantization import Along, Packed
from memory.loading.serial import Serial
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from tests.laws.prompts import Prompt, shrinking
from tests.laws.test_loading import STAGES

ALONG = get_args(Along)
SHAPES = [(2, 2, 16), (3, 1, 80), (1, 6, 32), (2, 3, 4), (1, 1, 5)]


def block(tokens: int, layers: int = 2, kv_heads: int = 2, head_dim: int = 16, seed: int = 0) -> KVBlock:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, layers, kv_heads, tokens, head_dim, generator=generator)
    return KVBlock(f"{tokens} {seed}", k, v)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of all that is unpacked."""
    seen: list[tuple[int, ...]] = []
    original = Packed.unpack

    def unpack(self: Packed, dtype: torch.dtype) -> torch.Tensor:
        seen.append(self.shape)
        return original(self, dtype)

    monkeypatch.setattr(Packed, "unpack", unpack)
    return seen


@pytest.mark.parametrize("keys", ALONG)
@pytest.mark.parametrize(("bits", "bound"), [(8, 0.004), (4, 0.07)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 20, 64, 77])
def test_any_block_comes_back_rounded(
    tokens: int, shape: tuple[int, ...], bits: int, bound: float, keys: Along
) -> None:
    storage, put = Quantized(bits=bits, group=8, keys=keys), block(tokens, *shape)
    storage.put(put)
    found = storage.get(put.identity)
    assert found.tokens == tokens and found.k.shape == tuple(put.k.shape)
    for back, x in ((found.k, put.k), (found.v, put.v)):
        assert back[:].shape == x.shape and back[:].dtype == x.dtype
        assert tokens == 0 or error(back[:], x) < bound
    for layer, one in enumerate(zip(put.k, put.v, strict=True)):
        for back, x in zip((found.k[layer], found.v[layer]), one, strict=True):
            assert back.shape == x.shape and (tokens == 0 or error(back, x) < bound * x.abs().max())
    assert storage.stats()["bytes"] == found.nbytes


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=4, max_size=4))),
    st.sampled_from(ALONG),
    st.sampled_from([4, 8]),
)
@settings(max_examples=150)
def test_a_part_is_the_same_numbers(drawn: tuple[int, list[int]], keys: Along, bits: int) -> None:
    """Whatever is asked for first: parts of parts, layers, rows."""
    tokens, edges = drawn
    (a, b), (c, d) = sorted(edges[:2]), sorted(edges[2:])
    x = block(tokens, seed=tokens).k
    rows = PackedRows.of(x, Quantized(bits=bits, group=8, keys=keys).format, keys)
    whole = rows[:]
    assert torch.equal(rows[:, :, a:b], whole[:, :, a:b])
    assert torch.equal(rows[1, :, a:b], whole[1, :, a:b])
    part = rows.narrow(2, a, b - a)
    assert part.shape == (*whole.shape[:2], b - a, whole.shape[3])
    assert torch.equal(part[:], whole[:, :, a:b])
    assert torch.equal(part[0:1, :, c:d], whole[0:1, :, a:b][:, :, c:d])
    assert part.nbytes <= rows.nbytes
    assert torch.equal(rows.index_select(0, torch.tensor([1, 0])), whole[[1, 0]])
    assert torch.equal(rows.to("cpu")[:], whole) and rows.device == x.device


def test_unsupported_indexes_of_packed_rows_are_refused() -> None:
    rows = PackedRows.of(block(9).k, Quantized().format)
    for index in [(0, 1), (0, slice(None), 3), (0, slice(None), slice(0, 4, 2)), (0, slice(None), slice(None), 1)]:
        with pytest.raises(ConfigError, match=r"use \[layers\]"):
            rows[index]
    with pytest.raises(ConfigError, match="not by dim 1"):
        rows.narrow(1, 0, 1)
    with pytest.raises(ConfigError, match="not by dim 2"):
        rows.index_select(2, torch.tensor([0]))
    for knobs, sentence in [({"bits": 3}, "bits=3"), ({"keys": "head"}, "'head'"), ({"budget_bytes": -1}, "-1")]:
        with pytest.raises(ConfigError, match=sentence):
            Quantized(**knobs)


@pytest.mark.parametrize(("bits", "share"), [(4, 0.29), (8, 0.54)])
@pytest.mark.parametrize("keys", ALONG)
def test_the_budget_counts_packed_bytes(bits: int, share: float, keys: Along) -> None:
    half = [replace(b, k=b.k.half(), v=b.v.half()) for b in (block(64, kv_heads=4, seed=n) for n in range(8))]
    full = sum(b.nbytes for b in half)
    storage = Quantized(bits=bits, keys=keys, budget_bytes=int(share * full))
    for one in half:
        storage.put(one)
    assert storage.stats()["blocks"] == 8 and storage.stats()["bytes"] <= share * full
    for seed in (8, 9):
        storage.put(replace(block(64, kv_heads=4, seed=seed), identity=str(seed)))
    assert storage.stats()["evicted"] == 2 and not storage.contains(half[0].identity)


def test_by_channel_a_few_large_channels_cost_the_others_less_and_short_blocks_gain_nothing() -> None:
    """KIVI's reason: measured on whole groups, on a block with a rest, and on one that has no whole group."""
    errors = {}
    for tokens in (64, 77, 9):
        x = block(tokens).k
        x[:, :, :, 3] += 40
        for keys in ALONG:
            rows = PackedRows.of(x, Quantized(group=16, keys=keys).format, keys)
            errors[tokens, keys] = float((rows[:] - x).abs().mean())
    assert errors[64, "channel"] < errors[64, "token"] / 5
    assert errors[64, "channel"] < errors[77, "channel"] < errors[77, "token"] / 2, "13 of 77 rows go by token"
    assert errors[9, "channel"] == errors[9, "token"]


def test_a_packed_block_is_not_packed_again() -> None:
    first, second = Quantized(), Quantized(bits=8)
    first.put(block(9))
    rests = first.get("9 0")
    second.put(rests)
    assert second.get("9 0") is rests


def test_it_evicts_as_ram_does() -> None:
    one, two = Ram(budget_bytes=3 * 4096), Quantized(budget_bytes=0)
    one.put(block(16))
    two.put(block(16))
    assert one.stats()["rejected"] == 0 and two.stats()["rejected"] == 1
    assert not two.contains("16 0") and two.get("16 0") is None
    assert [entry.key for entry in one.entries()] == ["16 0"] and not two.entries()


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_rows_that_are_computed_are_never_unpacked(
    stage: type, unpacked: list, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a few between others, which are moved along; here none are."""
    monkeypatch.setattr("memory.prompt.layout.BRIDGE", 1)
    prompt, storage = Prompt.random(seed=3), Quantized(bits=8, group=8)
    units = [[token % engine.info.vocab for token in unit] for unit in prompt.units]
    prompt = Prompt(tuple(map(tuple, units)), tuple(token % engine.info.vocab for token in prompt.query))
    for number, made in enumerate(prompt.blocks(engine)):
        storage.put(replace(made, identity=str(number)))
    layout = prompt.layout([storage.get(str(number)) for number in range(len(prompt.units))])
    script = shrinking(layout, engine.info.layers)
    engine.prefill(layout, script, stage())
    inactive = sum(layout.query - int((rows < layout.query).sum()) for rows in script.rows)
    assert 0 < inactive < layout.query * engine.info.layers
    assert sum(shape[0] * shape[-2] for shape in unpacked) == 2 * inactive, "keys and values of each, once"


@pytest.mark.parametrize("keys", ALONG)
def test_law_7_loading_changes_nothing(keys: Along, engine: Engine) -> None:
    ids = [tuple(range(1 + n, 21 + n)) for n in range(3)]
    prompt, storage = Prompt(tuple(ids), (5, 6, 7)), Quantized(group=8, keys=keys)
    for number, made in enumerate(prompt.blocks(engine)):
        storage.put(replace(made, identity=str(number)))
    layout = prompt.layout([storage.get(str(number)) for number in range(3)])
    found = [engine.prefill(layout, shrinking(layout, engine.info.layers), stage()).logits for stage in STAGES.values()]
    assert all(torch.equal(logits, found[0]) for logits in found)
    exact = engine.prefill(prompt.layout(prompt.blocks(engine)), shrinking(layout, engine.info.layers), Serial())
    assert not torch.equal(exact.logits, found[0])


def test_boxes_and_views_of_packed_blocks(unpacked: list) -> None:
    storage, put = Quantized(bits=8, group=8), block(24)
    storage.put(put)
    found = storage.get(put.identity)
    boxes = KeyBoxes.around([found.k], [1])
    assert [shape[0] for shape in unpacked] == [1], "only the layer that votes"
    assert error(boxes.low[0, :, 0], put.k[1].amin(1)) < 0.01
    part = found.part(5, 12)
    assert isinstance(part.k, PackedRows) and part.identity.endswith("[5:12]")
    assert torch.equal(part.v[:], found.v[:][:, :, 5:12])
