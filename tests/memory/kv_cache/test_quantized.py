"""A packed cache is a dense one whose keys and values are those that come back, whatever it has been through."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, ModelError
from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import FAMILIES
from memory.kv_cache.quantization import PackFormat
from tests.laws.prompts import relative, tokens
from tests.memory.kv_cache.pairs import (
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
    save,
)
from tests.references.packed import Dense


@pytest.mark.parametrize("family", FAMILIES)
@EVERY_FORMAT
def test_attention_is_that_over_what_comes_back(family: str, format: PackFormat, engine_of: GetEngine) -> None:
    """Prefills and turns of all sizes, rows dropped, rows cut away, candidates behind them."""
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
    """Behind the rows that are there, read out: a rounding can lift a number over an edge, and then it is another."""
    engine = engine_of(family, dtype)
    cache, dense = packed(engine), Dense(engine.plain, FORMATS[0])
    engine.extend(cache, tokens(300, 1))
    dense.append(tokens(300, 1))
    for layer, stored in enumerate(dense.stored.layers):
        stored.keys, stored.values = cache.keys(layer)[None].clone(), cache.values(layer)[None].clone()
    found, expected = engine.extend(cache, tokens(15, 2)).logits, dense.append(tokens(15, 2))[-1:]
    assert relative(found, expected.float()) < (1e-5 if dtype == torch.float32 else 5e-2)


@SMALL
@pytest.mark.parametrize("sizes", [(64,), (128, 64), (100, 7, 33), (1, 130)])
def test_any_chunking(family: str, sizes: tuple[int, ...], engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family))
    steps = tuple((100 * (i + 1), size) for i, size in enumerate(sizes))
    pair.append(500, ChunkSchedule(whole=200, steps=steps, rest=sizes[-1]))
    pair.append(7, ChunkSchedule(whole=200))


@SMALL
def test_chunks_of_whole_pages_change_nothing(family: str, engine_of: GetEngine) -> None:
    """Where chunks end at page borders every row sees the others as in one pass: packed, or later."""
    engine = engine_of(family)
    one, many = packed(engine), packed(engine)
    expected = engine.extend(one, tokens(700, 1)).logits
    found = engine.extend(many, tokens(700, 1), ChunkSchedule(whole=1, steps=((200, 192), (500, 320)), rest=128)).logits
    assert relative(found, expected) < EXACT
    for a, b in zip(bits_of(one), bits_of(many), strict=True):
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
def test_whatever_happens_to_a_cache_and_its_forks(
    ops: list, format: PackFormat, engine_of: GetEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "agent.safetensors"
    pairs = [Pair.new(engine_of(), format)]
    pairs[0].append(70)
    for what, size in ops:
        pair = pairs[-1]
        if what == "append" and pair.dense.rows < 900:
            pair.append(size)
        elif what == "cut":
            pair.cut(min(pair.dense.rows, round(size * pair.dense.rows) if isinstance(size, float) else size))
        elif what == "drop" and pair.cache.length:
            pair.drop(size)
        elif what == "fork":
            pairs.append(pair.fork())
        elif what == "freeze":
            pair.cache.freeze()
        elif what == "score" and pair.cache.length:
            pair.score()
        elif what == "swap":
            pairs.insert(0, pairs.pop())
        elif what == "restart":
            pair.cache = load(pair.engine, save(pair.cache.fork(), path))
        elif what == "fail":
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
        for count in (24, 100):  # the page is filled to the brim, and beyond
            with pytest.raises(ModelError, match="no float16 scale"):
                engine.extend(pair.cache, tokens(count, 5))
            pair.cut(40)
    finally:
        weight.data.copy_(before)
    pair.append(100)


def test_formats_whose_groups_fill_no_page_are_refused(engine_of: GetEngine) -> None:
    with pytest.raises(ConfigError, match="groups of 128 do not fill pages of 64"):
        packed(engine_of(), PackFormat(4, 128, "channel"))
