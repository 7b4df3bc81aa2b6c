"""Quantized caches, their forks and files: attention over the unpacked values, equal bits, and detected damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, CorruptError, ModelError
from memory.engine.attention.observer import AttentionObserver
from memory.engine.attention.tiled import TILE
from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import FAMILIES
from memory.files.block_file import open_blocks, write_blocks
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import BLOCK, QuantizedCache
from memory.kv_cache.quantized_file import header_of, tensors_of
from tests.laws.prompts import relative, tokens
from tests.memory.kv_cache import pairs
from tests.memory.kv_cache.pairs import GetEngine, Pair, bits_of, fail, filled, load, packed, same, save, tensors_in
from tests.memory.storage.disks import flip
from tests.references.packed import Dense


@pytest.mark.parametrize("family", FAMILIES)
@pairs.EVERY_FORMAT
def test_attention_is_that_over_the_unpacked_values(family: str, format: PackFormat, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family), format)
    for count in (130, 1, 61, 1, 63, 64, 1, 200):
        pair.append(count)
    pair.check_rows()
    pair.score()
    pair.drop(0.4)
    pair.check_rows()
    pair.append(20)
    pair.score()
    pair.cut(301)
    pair.append(90)
    pair.check_rows()


@pairs.SMALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(family: str, dtype: torch.dtype, engine_of: GetEngine) -> None:
    """The reference gets the cache's unpacked rows, because rounding can change a code."""
    engine = engine_of(family, dtype)
    cache, dense = packed(engine), Dense(engine.plain, pairs.FORMATS[0])
    engine.extend(cache, tokens(300, 1))
    dense.append(tokens(300, 1))
    for layer, stored in enumerate(dense.stored.layers):
        stored.keys, stored.values = cache.keys(layer)[None].clone(), cache.values(layer)[None].clone()
    actual, expected = engine.extend(cache, tokens(15, 2)).logits, dense.append(tokens(15, 2))[-1:]
    assert relative(actual, expected.float()) < (1e-5 if dtype == torch.float32 else 5e-2)


@pairs.SMALL
@pytest.mark.parametrize("sizes", [(64,), (128, 64), (100, 7, 33), (1, 130)])
def test_any_chunking(family: str, sizes: tuple[int, ...], engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(family))
    steps = tuple((100 * (i + 1), size) for i, size in enumerate(sizes))
    pair.append(500, ChunkSchedule(one_pass=200, steps=steps, rest=sizes[-1]))
    pair.append(7, ChunkSchedule(one_pass=200))


@pairs.SMALL
def test_chunks_of_whole_pages_change_nothing(family: str, engine_of: GetEngine) -> None:
    """Chunks that end at page borders read the same rows packed as one pass does."""
    engine = engine_of(family)
    whole, many = packed(engine), packed(engine)
    expected = engine.extend(whole, tokens(700, 1)).logits
    chunks = ChunkSchedule(one_pass=1, steps=((200, 192), (500, 320)), rest=128)
    assert relative(engine.extend(many, tokens(700, 1), chunks).logits, expected) < pairs.EXACT
    for a, b in zip(bits_of(whole), bits_of(many), strict=True):
        assert relative(a, b) < pairs.EXACT


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


@pytest.mark.parametrize("format", [pairs.FORMATS[0], pairs.FORMATS[3]], ids=["4-token", "8-channel"])
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
    pair = Pair.new(engine, rows=40)
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
    with pytest.raises(ConfigError, match="groups of 128 keys by channel do not fill pages of 64 rows"):
        packed(engine_of(), PackFormat(4, 128, "channel"))


@pairs.SMALL
@pairs.EVERY_FORMAT
def test_cut_anywhere(family: str, format: PackFormat, engine_of: GetEngine) -> None:
    whole = Pair.new(engine_of(family), format, rows=3 * BLOCK + 40)
    for position in (0, 1, 63, 64, 65, 255, 256, 257, 319, 320, 321, 511, 512, 513, 767, 768, 800, 807, 808):
        pair = whole.fork()
        pair.cut(position)
        assert pair.cache.logits is None and pair.cache.exact == position
        pair.append(5)
        pair.append(100)
    whole.append(1)


def test_rewind_is_cutting_behind_live_rows(engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of("mistral"), rows=400)
    pair.drop(0.3)
    length, logits = 150, torch.ones(1, 3)
    pair.dense.cut(int(pair.cache.positions[length]))
    pair.cache.rewind(length, logits)
    assert pair.cache.length == length and pair.cache.logits is logits
    pair.append(30)
    before = pair.cache.next_position
    pair.cache.rewind(pair.cache.length, None)
    assert pair.cache.next_position == before and pair.cache.logits is None


def test_a_whole_tile_may_be_dropped(engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(), rows=TILE + 100)
    keep = torch.arange(TILE + 100) >= TILE
    pair.dense.drop(pair.cache.positions[~keep])
    pair.cache.drop(keep)
    pair.append(10)
    with pytest.raises(ConfigError, match="mask of 3 rows does not fit the 110"):
        pair.cache.drop(torch.ones(3, dtype=torch.bool))


@pairs.SMALL
def test_scoring_changes_no_row(family: str, engine_of: GetEngine) -> None:
    engine = engine_of(family)
    for count in (5, 64, 300):
        cache = filled(engine, count)
        before, size = bits_of(cache), cache.nbytes
        first = engine.score(cache, pairs.CANDIDATES).scores
        assert same(before, bits_of(cache)) and cache.nbytes == size and cache.next_position == count
        assert torch.equal(engine.score(cache, pairs.CANDIDATES).scores, first)
        assert torch.equal(engine.score(cache.fork(), pairs.CANDIDATES).scores, first)


@pytest.mark.parametrize("before", [1, 60, 64, 300])
@pytest.mark.parametrize("count", [3, 64, 300])
def test_a_failed_pass_changes_no_row(before: int, count: int, engine_of: GetEngine) -> None:
    pair = Pair.new(engine_of(), rows=before)
    fail(pair.engine, pair.cache, count)
    pair.append(10)
    fail(pair.engine, pair.cache, count)
    pair.cut(pair.cache.next_position)
    pair.check_rows()
    pair.append(70)


@pairs.SMALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [1, 63, 64, 255, 256, 300, 512, 777])
def test_a_restored_cache_is_equal(
    family: str, dtype: torch.dtype, length: int, engine_of: GetEngine, tmp_path: Path
) -> None:
    """The original has several extents, the restored one two: tiles do not depend on where rows lie."""
    engine = engine_of(family, dtype)
    hot = packed(engine)
    for part in torch.tensor(tokens(length, 1)).split(150):
        engine.extend(hot, part)
    if length > 100:
        hot.drop(torch.arange(length) % 7 > 0)
    warm = load(engine, save(hot, tmp_path / "a"))
    assert same(bits_of(hot), bits_of(warm))
    assert (warm.tokens, warm.packed, warm.exact) == (hot.tokens, hot.packed, hot.exact)
    assert torch.equal(warm.positions, hot.positions)
    forked = hot.fork()
    for count in (20, 1, 90, 300):
        bits = [engine.extend(cache, tokens(count, count)).logits for cache in (hot, warm, forked)]
        assert torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2])
    again = load(engine, save(warm.fork(), tmp_path / "b"))
    assert same(bits_of(hot), bits_of(again))


def test_writing_to_a_restored_cache_never_changes_its_file(engine_of: GetEngine, tmp_path: Path) -> None:
    engine = engine_of()
    cache = filled(engine, 700)
    path = save(cache, tmp_path / "a")
    raw = path.read_bytes()
    for position in (700, 699, 512, 300, 256, 70, 0):
        warm = load(engine, path)
        warm.cut(position)
        engine.extend(warm, tokens(300, 2))
        warm.fork().cut(10)
    assert path.read_bytes() == raw


def damage(path: Path, block: int) -> None:
    codes = open_blocks(path).tensor("k.codes")
    place = codes[block].data_ptr() - codes.data_ptr()
    at = path.read_bytes().index(bytes(codes.flatten()[:64].tolist())) + place + 1000
    flip(path, 8 * at + 2)


@pytest.mark.parametrize("position", [256 + 64, 256 + 70, 256 + 255])
def test_a_damaged_block_is_detected_before_it_is_copied(position: int, engine_of: GetEngine, tmp_path: Path) -> None:
    """A cut at a page border copies the block without reading its rows."""
    engine = engine_of()
    cache = filled(engine, 900)
    path = save(cache, tmp_path / "a")
    damage(path, 1)
    warm = load(engine, path)
    warm.fork()
    with pytest.raises(CorruptError, match="block 1 of 4"):
        warm.cut(position)
        engine.extend(warm, tokens(200, 3))  # the copy has no checksum
    with pytest.raises(CorruptError, match="block 1 of 4"):
        tensors_of(load(engine, path))
    with pytest.raises(CorruptError, match="block 1 of 4"):
        engine.extend(load(engine, path), [1])
    safe = load(engine, path)
    safe.cut(256)
    engine.extend(safe, tokens(10, 2))
    damage(path, 3)  # the last block is copied when the file is opened
    with pytest.raises(CorruptError, match="block 3 of 4"):
        load(engine, path)


def test_files_whose_parts_do_not_fit_are_refused(engine_of: GetEngine, tmp_path: Path) -> None:
    engine = engine_of()
    cache = filled(engine, 400)
    (tensors, extra), header = tensors_of(cache), header_of(cache)
    longer = header | {"ids": [*header["ids"], 7]}
    fewer = header | {"packed": 64}
    short = {"open": extra["open"][..., :3, :]}
    for wrong, rows in ((longer, extra), (fewer, extra), (header, short), (header, {"open": extra["open"].float()})):
        write_blocks(tmp_path / "a", tensors, wrong, rows)
        with pytest.raises(CorruptError, match="delete it"):
            load(engine, tmp_path / "a")
    write_blocks(tmp_path / "a", {name: x[..., 1:] for name, x in tensors.items()}, header, extra)
    with pytest.raises(CorruptError, match="does not fit this model"):
        load(engine, tmp_path / "a")


def storages(cache: QuantizedCache) -> set[int]:
    return {extent.k.codes.untyped_storage().data_ptr() for extent in cache.extents}


@pytest.mark.parametrize("chunking", [None, ChunkSchedule(one_pass=1, steps=((300, 300),), rest=150)])
def test_whole_blocks_are_shared_and_never_written_to(chunking: ChunkSchedule | None, engine_of: GetEngine) -> None:
    engine = engine_of()
    parent = filled(engine, 1000, chunking=chunking)
    parent.freeze()
    rows, shared = bits_of(parent), list(parent.extents)
    before = [x.clone() for x in tensors_in(shared)]
    forks = [parent.fork() for _ in range(10)]
    for number, fork in enumerate((*forks, parent)):
        engine.extend(fork, tokens(150, number))
        places = {x.k.codes.data_ptr() for x in shared}
        private = [extent for extent in fork.extents if extent.k.codes.data_ptr() not in places]
        assert sum(extent.blocks for extent in fork.extents) - sum(extent.blocks for extent in private) == 1000 // BLOCK
        assert all(torch.equal(a[:, :960], b[:, :960]) for a, b in zip(bits_of(fork), rows, strict=True))
    chance = random.Random(0)
    for fork in (*forks, parent):
        for _ in range(4):
            fork.cut(chance.randrange(fork.next_position + 1))
            engine.extend(fork, tokens(chance.randrange(1, 400), chance.randrange(1000)))
    assert same(before, tensors_in(shared))


def test_rows_grow_in_place_after_a_fork(engine_of: GetEngine) -> None:
    engine = engine_of()
    cache = packed(engine)
    for turn in range(40):
        before = list(cache.extents)
        fork, cache = cache, cache.fork()
        engine.extend(cache, tokens(40, turn))
        assert all(a is b for a, b in zip(before, cache.extents, strict=False))
        engine.extend(fork, tokens(3, turn))  # the second writer copies a block
    assert len(cache.extents) <= 4


def test_memory_of_cut_rows_is_released(engine_of: GetEngine) -> None:
    engine = engine_of()
    cache = filled(engine, 5000, chunking=ChunkSchedule())
    before, extents = storages(cache), list(cache.extents)  # references, so that addresses are not used twice
    cache.cut(600)
    engine.extend(cache, tokens(100, 2))
    assert extents and not before & storages(cache)
    engine.extend(cache, tokens(1500, 1))
    before = storages(cache)
    cache.cut(2000)
    engine.extend(cache, tokens(100, 2))
    assert before & storages(cache), "a large remainder stays in place"


def test_a_fork_has_no_observer(engine_of: GetEngine) -> None:
    engine = engine_of()
    cache = QuantizedCache(engine.info, pairs.FORMATS[0], engine.device, AttentionObserver(recent=4))
    engine.extend(cache, tokens(100, 1))
    fork = cache.fork()
    assert fork.observer is None
    assert relative(*(engine.extend(x, tokens(9, 2)).logits for x in (fork, cache))) == 0
    assert cache.observer.places.tolist() == [105, 106, 107, 108]
