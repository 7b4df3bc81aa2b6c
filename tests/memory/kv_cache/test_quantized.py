"""Quantized caches: attention is that over the unpacked values, after any appends, cuts, drops and failed passes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, ModelError
from memory.engine.attention.tiled import TILE
from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import FAMILIES
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import BLOCK, PAGE
from tests.laws.prompts import relative, tokens
from tests.memory.kv_cache.pairs import (
    CANDIDATES,
    EVERY_FORMAT,
    EXACT,
    FORMATS,
    SMALL,
    GetEngine,
    Pair,
    bits_of,
    fail,
    load,
    packed,
    same,
    save,
)
from tests.references.packed import Dense


@pytest.mark.parametrize("family", FAMILIES)
@EVERY_FORMAT
def test_attention_is_that_over_the_unpacked_values(family: str, format: PackFormat, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family), format)
    for count in (130, 1, 61, 1, 63, 64, 1, 200):
        pair.append(count)
    pair.check_rows()
    pair.score()
    pair.drop(0.4)
    pair.append(20)
    pair.score()
    pair.cut(301)
    pair.append(90)
    pair.check_rows()


@SMALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(family: str, dtype: torch.dtype, engine_of: GetEngine) -> None:
    """The reference gets the cache's unpacked rows, because rounding can change a code."""
    engine = engine_of(family, dtype)
    cache, dense = packed(engine), Dense(engine.plain, FORMATS[0])
    engine.extend(cache, tokens(300, 1))
    dense.append(tokens(300, 1))
    for layer, stored in enumerate(dense.stored.layers):
        stored.keys, stored.values = cache.keys(layer)[None].clone(), cache.values(layer)[None].clone()
    actual, expected = engine.extend(cache, tokens(15, 2)).logits, dense.append(tokens(15, 2))[-1:]
    assert relative(actual, expected.float()) < (1e-5 if dtype == torch.float32 else 5e-2)


@SMALL
@pytest.mark.parametrize("sizes", [(64,), (128, 64), (100, 7, 33), (1, 130)])
def test_any_chunking(family: str, sizes: tuple[int, ...], engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family))
    steps = tuple((100 * (i + 1), size) for i, size in enumerate(sizes))
    pair.append(500, ChunkSchedule(whole=200, steps=steps, rest=sizes[-1]))
    pair.append(7, ChunkSchedule(whole=200))


@SMALL
def test_chunks_of_whole_pages_change_nothing(family: str, engine_of: GetEngine) -> None:
    """Chunks that end at page borders read the same rows packed as one pass does."""
    engine = engine_of(family)
    whole, many = packed(engine), packed(engine)
    expected = engine.extend(whole, tokens(700, 1)).logits
    chunks = ChunkSchedule(whole=1, steps=((200, 192), (500, 320)), rest=128)
    assert relative(engine.extend(many, tokens(700, 1), chunks).logits, expected) < EXACT
    for a, b in zip(bits_of(whole), bits_of(many), strict=True):
        assert relative(a, b) < EXACT


ops = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 150)),
        st.tuples(st.just("append"), st.sampled_from([1, 63, 64, 65, 128, 256])),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("cut"), st.sampled_from([64, 128, 256, 255, 257, 512])),
        st.tuples(st.just("drop"), st.floats(0, 0.5)),
        st.tuples(st.sampled_from(["fork", "freeze", "score", "swap", "restart", "fail"]), st.none()),
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.parametrize("format", [FORMATS[0], FORMATS[3]], ids=["4-token", "8-channel"])
@given(ops=ops)
@settings(max_examples=40)
def test_any_operations_on_a_cache_and_its_forks(
    ops: list, format: PackFormat, engine_of: GetEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "agent.safetensors"
    pairs = [Pair.new(engine_of(), format)]
    pairs[0].append(70)
    for operation, size in ops:
        pair = pairs[-1]
        if operation == "append" and pair.dense.rows < 900:
            pair.append(size)
        elif operation == "cut":
            pair.cut(min(pair.dense.rows, round(size * pair.dense.rows) if isinstance(size, float) else size))
        elif operation == "drop" and pair.cache.length:
            pair.drop(size)
        elif operation == "fork":
            pairs.append(pair.fork())
        elif operation == "freeze":
            pair.cache.freeze()
        elif operation == "score" and pair.cache.length:
            pair.score()
        elif operation == "swap":
            pairs.insert(0, pairs.pop())
        elif operation == "restart":
            pair.cache = load(pair.engine, save(pair.cache.fork(), path))
        elif operation == "fail":
            fail(pair.engine, pair.cache, 80)
    for pair in pairs:
        pair.append(3)
        pair.score()


def test_numbers_that_cannot_be_packed_are_refused(engine_of: GetEngine) -> None:
    engine = engine_of()
    pair = Pair.new(engine)
    pair.append(40)
    weight = engine.decoder.layers[1].self_attn.v_proj.weight
    before = weight.data.clone()
    weight.data.mul_(1e9)
    try:
        for count in (24, 100):  # the page is filled exactly, and exceeded
            with pytest.raises(ModelError, match="no float16 scale"):
                engine.extend(pair.cache, tokens(count, 5))
            pair.cut(40)
    finally:
        weight.data.copy_(before)
    pair.append(100)


def test_formats_whose_groups_fill_no_page_are_refused(engine_of: GetEngine) -> None:
    with pytest.raises(ConfigError, match="groups of 128 do not fill pages of 64"):
        packed(engine_of(), PackFormat(4, 128, "channel"))


@SMALL
@EVERY_FORMAT
def test_cut_anywhere(family: str, format: PackFormat, engine_of: GetEngine) -> None:
    whole = Pair.new(engine_of(family), format)
    whole.append(3 * BLOCK + 40)
    for position in (0, 1, 63, 64, 65, 255, 256, 257, 319, 320, 321, 511, 512, 513, 767, 768, 800, 807, 808):
        pair = whole.fork()
        pair.cut(position)
        assert pair.cache.logits is None and pair.cache.exact == position
        pair.append(5)
        pair.append(100)
    whole.append(1)


def test_rewind_is_cutting_behind_live_rows(engine_of: GetEngine) -> None:
    engine = engine_of("mistral")
    pair = Pair.new(engine)
    pair.append(400)
    pair.drop(0.3)
    length = 150
    position = int(pair.cache.positions[length])
    logits = torch.ones(1, 3)
    pair.cache.rewind(length, logits)
    pair.dense.cut(position)
    assert pair.cache.length == length and pair.cache.logits is logits
    pair.append(30)
    before = pair.cache.next_position
    pair.cache.rewind(pair.cache.length, None)
    assert pair.cache.next_position == before and pair.cache.logits is None


@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_rows_are_hidden(family: str, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family))
    pair.append(2 * PAGE + 30)
    before = pair.cache.keys(1)
    keep = torch.ones(pair.cache.length, dtype=torch.bool)
    keep[[0, 5, 63, 64, 100, 130, 140]] = False
    keep[70:90] = False
    pair.dense.drop(pair.cache.positions[~keep])
    pair.cache.drop(keep)
    assert torch.equal(pair.cache.keys(1), before[:, keep]) and pair.cache.exact == 0
    pair.append(40)
    pair.drop(0.5)
    pair.append(40)
    pair.score()


def test_a_whole_tile_may_be_dropped(engine_of: GetEngine) -> None:
    engine = engine_of()
    pair = Pair.new(engine)
    pair.append(TILE + 100)
    keep = torch.arange(TILE + 100) >= TILE
    pair.dense.drop(pair.cache.positions[~keep])
    pair.cache.drop(keep)
    pair.append(10)
    with pytest.raises(ConfigError, match="mask of 3 rows does not fit the 110"):
        pair.cache.drop(torch.ones(3, dtype=torch.bool))


@SMALL
def test_scoring_changes_no_row(family: str, engine_of: GetEngine) -> None:
    engine = engine_of(family)
    for count in (5, 64, 300):
        cache = packed(engine)
        engine.extend(cache, tokens(count, 1))
        before, size = bits_of(cache), cache.nbytes
        first = engine.score(cache, CANDIDATES).scores
        assert same(before, bits_of(cache)) and cache.nbytes == size and cache.next_position == count
        assert torch.equal(engine.score(cache, CANDIDATES).scores, first)
        assert torch.equal(engine.score(cache.fork(), CANDIDATES).scores, first)


@pytest.mark.parametrize("before", [1, 60, 64, 300])
@pytest.mark.parametrize("count", [3, 64, 300])
def test_a_failed_pass_changes_no_row(before: int, count: int, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of())
    pair.append(before)
    fail(pair.engine, pair.cache, count)
    pair.append(10)
    fail(pair.engine, pair.cache, count)
    pair.cut(pair.cache.next_position)
    pair.check_rows()
    pair.append(70)
