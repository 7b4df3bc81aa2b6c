"""Packed rows that are cut away, rewound, dropped or broken off: those that stay are what they were."""

from __future__ import annotations

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.tiled import TILE
from memory.engine.models.tiny_models import FAMILIES
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import BLOCK, PAGE
from tests.laws.prompts import tokens
from tests.memory.kv_cache.pairs import CANDIDATES, EVERY_FORMAT, SMALL, GetEngine, Pair, bits_of, fail, packed, same


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
def test_dropping_is_hiding(family: str, engine_of: GetEngine) -> None:
    """Packed rows, open rows, whole tiles of them; survivors keep their bits."""
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


def test_whole_tiles_may_be_gone(engine_of: GetEngine) -> None:
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
def test_scoring_leaves_no_trace(family: str, engine_of: GetEngine) -> None:
    engine = engine_of(family)
    for count in (5, 64, 300):
        cache = packed(engine)
        engine.extend(cache, tokens(count, 1))
        before, taken = bits_of(cache), cache.nbytes
        first = engine.score(cache, CANDIDATES).scores
        assert same(before, bits_of(cache)) and cache.nbytes == taken and cache.next_position == count
        assert torch.equal(engine.score(cache, CANDIDATES).scores, first)
        assert torch.equal(engine.score(cache.fork(), CANDIDATES).scores, first)


@pytest.mark.parametrize("before", [1, 60, 64, 300])
@pytest.mark.parametrize("count", [3, 64, 300])
def test_a_pass_that_fails_leaves_no_trace(before: int, count: int, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of())
    pair.append(before)
    fail(pair.engine, pair.cache, count)
    pair.append(10)
    fail(pair.engine, pair.cache, count)
    pair.cut(pair.cache.next_position)
    pair.check_rows()
    pair.append(70)
