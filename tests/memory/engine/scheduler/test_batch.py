"""Batch: tokens, logits, bytes and observers of agents that decode together equal those of agents that decode alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, ModelError
from memory.engine.attention.observer import AttentionObserver
from memory.engine.attention.quantized_attention import packed_scores, packed_weighted_sum
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.scheduler import batched_cache as gathered_paged
from memory.engine.scheduler import batched_quantized as gathered_packed
from memory.engine.scheduler.batch import Batch, BatchGroups, Member
from memory.engine.transformers.append import append
from memory.engine.transformers.decoder import Decoder
from memory.kv_cache.dense import DenseCache
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import Packed, PackFormat, pack
from memory.kv_cache.quantized import BLOCK, PAGE, QuantizedCache
from tests.laws.prompts import relative, tokens

KINDS = {
    "paged": None,
    "4 bits": PackFormat(4, 16),
    "8 bits": PackFormat(8, 64),
    "by channel": PackFormat(4, 32, "channel"),
}
ANY_KIND = pytest.mark.parametrize("kind", KINDS)
LENGTHS = 300, 5, 70, 64, 601, 131  # some of several blocks, none about to fill a page
FILLING = 316, 5, 123, 62, 638, 191  # most fill a page, or a block, within a few steps
DROPPED = 2, 4  # members with dropped rows
DOUBLE = [family for family in FAMILIES if family not in ("qwen3_moe", "gpt_oss")]  # torch's experts know no float64


@pytest.fixture(scope="module")
def double_decoder() -> Decoder:
    return tiny_model("qwen2_sliding", layers=2, dtype=torch.float64).decoder


class CacheMaker:
    """Caches of one kind for one model."""

    def __init__(self, decoder: Decoder, kind: str, observers: bool = False) -> None:
        spec = decoder.spec
        self.decoder, self.format, self._observers = decoder, KINDS[kind], observers
        self.pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, decoder.device)

    @torch.inference_mode()
    def cache(self, rows: int, seed: int = 0, dropped: bool = False) -> Member:
        decoder, format = self.decoder, self.format
        observer = AttentionObserver(recent=4, mass=format is None) if self._observers else None
        cache = PagedCache(self.pool, observer)
        if format is not None:
            cache = QuantizedCache(decoder.spec, format, decoder.device, observer)
        append(self.decoder, cache, torch.tensor(tokens(rows, seed)))
        if dropped:
            cache.drop(torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.7)
        return cache

    def caches(self, lengths: Sequence[int] = LENGTHS) -> list[Member]:
        return [self.cache(rows, i, i in DROPPED) for i, rows in enumerate(lengths)]

    @torch.inference_mode()
    def alone(self, caches: Sequence[Member], tokens: Sequence[int]) -> torch.Tensor:
        """Decode one token of each cache alone; returns logits (caches, vocab)."""
        pairs = zip(caches, tokens, strict=True)
        return torch.cat([append(self.decoder, cache, torch.tensor([token])) for cache, token in pairs])


def check_steps(maker: CacheMaker, batch: Batch, twins: Sequence[Member], steps: int, tolerance: float) -> None:
    """Compare greedy steps of a batch with those of its ``twins``, which decode alone."""
    tokens = [7 + i for i in range(len(twins))]
    for _ in range(steps):
        result, expected = batch.step(tokens), maker.alone(twins, tokens)
        assert relative(result, expected) <= tolerance
        tokens = expected.argmax(-1).tolist()
        assert result.argmax(-1).tolist() == tokens
    check_same(batch.members, twins, tolerance)


def check_same(members: Sequence[Member], twins: Sequence[Member], tolerance: float) -> None:
    for local, twin in zip(members, twins, strict=True):
        for name in ("tokens", "exact", "length", "next_position", "reads"):
            assert getattr(local, name) == getattr(twin, name), name
        assert torch.equal(local.positions, twin.positions)
        assert (local.logits is None) == (twin.logits is None)
        assert twin.logits is None or relative(local.logits, twin.logits) <= tolerance


def check_observers(members: Sequence[Member], twins: Sequence[Member]) -> None:
    for local, twin in zip(members, twins, strict=True):
        assert torch.equal(local.observer.places, twin.observer.places)
        torch.testing.assert_close(local.observer.mass(local.positions), twin.observer.mass(twin.positions))
        for layer, queries in twin.observer.queries.items():
            torch.testing.assert_close(local.observer.queries[layer], queries)


def check_packed(x: Packed, y: Packed) -> None:
    assert all(torch.equal(*pair) for pair in zip(x.tensors, y.tensors, strict=True))


@ANY_KIND
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_equal_those_of_each_member_alone(family: str, kind: str) -> None:
    maker = CacheMaker(tiny_model(family, layers=2).decoder, kind)
    check_steps(maker, Batch(maker.decoder, maker.caches()), maker.caches(), 8, 1e-5)


@ANY_KIND
@pytest.mark.parametrize("family", DOUBLE)
def test_pages_filled_by_steps_equal_those_of_each_member_alone(family: str, kind: str) -> None:
    """Use float64: in float32 a product of one row rounds differently from that of many, and a code may flip."""
    maker = CacheMaker(tiny_model(family, layers=2, dtype=torch.float64).decoder, kind)
    members, twins = maker.caches(FILLING), maker.caches(FILLING)
    packed = [getattr(cache, "packed", 0) for cache in members]
    check_steps(maker, Batch(maker.decoder, members), twins, 7, 1e-13)
    if kind != "paged":
        assert sum(local.packed > before for local, before in zip(members, packed, strict=True)) == 5
        for local, twin in zip(members, twins, strict=True):
            assert local.packed == twin.packed
            for extent, peer in zip(local.extents, twin.extents, strict=True):
                check_packed(extent.k, peer.k)
                check_packed(extent.v, peer.v)


def test_a_full_page_is_packed_from_its_open_rows() -> None:
    maker = CacheMaker(tiny_model("qwen2", layers=2).decoder, "4 bits")
    member = maker.cache(BLOCK - 1)
    batch = Batch(maker.decoder, [maker.cache(400), member])
    batch.step([7, 8])
    assert member.packed == BLOCK
    for rows, stored in zip(member.tail[:, :, 0], (member.extents[-1].k, member.extents[-1].v), strict=True):
        check_packed(stored[0].part(BLOCK - PAGE, BLOCK), pack(rows, maker.format))  # the next pass overwrites rows


@ANY_KIND
@given(data=st.data())
@settings(max_examples=6)
def test_members_join_and_leave(double_decoder: Decoder, kind: str, data: st.DataObject) -> None:
    """Members join, leave, are cut or decode alone: every step equals one-by-one decoding."""
    maker = CacheMaker(double_decoder, kind)
    batch, twins = Batch(maker.decoder), []
    for turn in range(12):
        act = data.draw(st.sampled_from(["join", "step", "step", "leave", "alone", "cut"]))
        if act == "join" or not twins:
            rows = data.draw(st.integers(1, 330))
            batch.join(maker.cache(rows, turn))
            twins.append(maker.cache(rows, turn))
            continue
        at = data.draw(st.integers(0, len(twins) - 1))
        if act == "step":
            check_steps(maker, batch, twins, 2, 1e-12)
        elif act == "leave":
            check_same([batch.extract(at)], [twins.pop(at)], 1e-12)
        elif act == "alone":
            for cache in (batch.members[at], twins[at]):
                maker.alone([cache], [9])
        else:
            position = data.draw(st.integers(1, twins[at].next_position))
            for cache in (batch.members[at], twins[at]):
                with torch.inference_mode():
                    cache.cut(position)
    maker.pool.check_integrity()


@ANY_KIND
def test_observers_of_members_equal_those_of_each_member_alone(kind: str) -> None:
    maker = CacheMaker(tiny_model("gemma3_text", layers=2, dtype=torch.float64).decoder, kind, observers=True)
    members, twins = maker.caches(), maker.caches()
    check_steps(maker, Batch(maker.decoder, members), twins, 6, 1e-12)
    check_observers(members, twins)


@ANY_KIND
def test_observers_ignore_a_pass_that_failed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the failure each member decodes its token alone."""
    maker = CacheMaker(tiny_model("llama", layers=2, dtype=torch.float64).decoder, kind, observers=True)
    members, twins, feed, fails = maker.caches(), maker.caches(), maker.decoder.feed, [True]

    def feed_once_less(layer: int, mixed: torch.Tensor) -> torch.Tensor:
        if layer == 1 and fails:
            fails.clear()
            raise RuntimeError("out of memory")
        return feed(layer, mixed)

    with torch.inference_mode():
        expected = BatchGroups(maker.decoder).step(twins, [7] * len(twins))
        monkeypatch.setattr(maker.decoder, "feed", feed_once_less)
        result = BatchGroups(maker.decoder).step(members, [7] * len(members))
    torch.testing.assert_close(result, expected)
    check_observers(members, twins)


@ANY_KIND
def test_steps_do_not_depend_on_the_size_of_tiles(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = CacheMaker(tiny_model("gpt_oss", layers=2).decoder, kind)
    for module in (gathered_packed, gathered_paged):
        monkeypatch.setattr(module, "ROWS", 500)
    check_steps(maker, Batch(maker.decoder, maker.caches()), maker.caches(), 4, 1e-5)


def test_later_steps_do_not_change_forks_and_members_that_left() -> None:
    maker = CacheMaker(tiny_model("llama", layers=2, dtype=torch.float64).decoder, "4 bits")
    batch = Batch(maker.decoder, [maker.cache(100, 0), maker.cache(90, 1), maker.cache(80, 2)])
    batch.step([1, 2, 3])
    reference, fork = batch.extract(0), batch.members[0].fork()
    before = [[cache.keys(0).clone(), cache.values(1).clone()] for cache in (reference, fork)]
    batch.step([4, 5])
    for cache, pair in zip((reference, fork), before, strict=True):
        assert torch.equal(cache.keys(0), pair[0]) and torch.equal(cache.values(1), pair[1])
    twin = maker.cache(90, 1)
    maker.alone([twin], [2])
    expected = maker.alone([twin], [6])
    torch.testing.assert_close(maker.alone([fork], [6]), expected)


def test_a_member_that_cannot_be_packed_affects_no_other() -> None:
    maker = CacheMaker(tiny_model("qwen2", layers=2).decoder, "4 bits")
    broken, sound, twin = maker.cache(PAGE - 1), maker.cache(PAGE - 1, 1), maker.cache(PAGE - 1, 1)
    with torch.inference_mode():
        broken.tail[0, 1, 0, 0, 3, 3] = float("inf")
    batch = Batch(maker.decoder, [broken, sound])
    with pytest.raises(ModelError, match="no float16 scale"):
        batch.step([7, 8])
    maker.alone([twin], [8])
    check_same([sound], [twin], 1e-5)
    assert len(broken.tokens) == broken.length == PAGE - 1 and broken.packed == 0


def test_refusals() -> None:
    decoder = tiny_model("qwen2", layers=2).decoder
    paged, packed, eight = (CacheMaker(decoder, kind) for kind in ("paged", "4 bits", "8 bits"))
    batch, member = Batch(decoder), packed.cache(9)
    with pytest.raises(ConfigError, match="0 tokens for 0 members"):
        batch.step([])
    batch.join(member)
    with pytest.raises(ConfigError, match="2 tokens for 1 members"):
        batch.step([1, 2])
    with pytest.raises(ConfigError, match="already"):
        batch.join(member)
    for peer in (paged.cache(9), eight.cache(9)):
        with pytest.raises(ConfigError, match="a batch per kind"):
            batch.join(peer)
    with pytest.raises(ConfigError, match="DenseCache"):
        batch.join(DenseCache(decoder.spec, 9, decoder.device))
    assert batch.extract(0) is member and len(batch) == 0


SHAPES: list[tuple[Any, ...]] = [
    (6, 6, 32, 64), (14, 2, 64, 64), (4, 2, 16, 32), (6, 3, 96, 64), (4, 4, 96, 128), (6, 2, 10, 16), (2, 1, 5, 8)
]  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "group"), SHAPES)
def test_products_with_codes(heads: int, kv_heads: int, head_dim: int, group: int, bits: int) -> None:
    """Groups within a head, over several heads, and across heads' borders give the products of the numbers."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(3, *size, generator=generator) for size in ((heads, head_dim), (kv_heads, 50, head_dim)))
    packed = pack(k, PackFormat(bits, group))
    numbers = packed.unpack(torch.float32).repeat_interleave(heads // kv_heads, 1)
    scores = torch.einsum("rhd,rhtd->rht", q, numbers)
    torch.testing.assert_close(packed_scores(q, packed), scores, rtol=1e-5, atol=3e-5)
    weights = scores.softmax(-1)
    expected = torch.einsum("rht,rhtd->rhd", weights, numbers)
    torch.testing.assert_close(packed_weighted_sum(weights, packed, torch.float32), expected, rtol=1e-5, atol=1e-5)
    unpacked = torch.einsum("rhd,rhtd->rht", q.bfloat16(), numbers.bfloat16()).float()
    error = relative(packed_scores(q.bfloat16(), packed), scores)
    assert error <= 3 * relative(unpacked, scores), "no worse than numbers rounded to bfloat16"
