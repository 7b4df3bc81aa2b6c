"""Quantized caches in files, and their forks: equal bits, detected damage, and shared blocks that never change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CorruptError
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import ChunkSchedule
from memory.files.block_file import open_blocks, write_blocks
from memory.kv_cache.quantized import BLOCK, QuantizedCache
from memory.kv_cache.quantized_file import header_of, tensors_of
from tests.laws.prompts import relative, tokens
from tests.memory.kv_cache.pairs import FORMATS, SMALL, GetEngine, Pair, bits_of, load, packed, same, save


@SMALL
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
    cache = packed(engine)
    engine.extend(cache, tokens(700, 1))
    path = save(cache, tmp_path / "a")
    raw = path.read_bytes()
    for position in (700, 699, 512, 300, 256, 70, 0):
        warm = load(engine, path)
        warm.cut(position)
        engine.extend(warm, tokens(300, 2))
        warm.fork().cut(10)
    assert path.read_bytes() == raw


def damage(path: Path, block: int) -> None:
    """Flip a bit of a block's codes."""
    file = open_blocks(path)
    codes = file.tensor("k.codes")
    place = codes[block].data_ptr() - codes.data_ptr()
    raw = bytearray(path.read_bytes())
    at = raw.index(bytes(codes.flatten()[:64].tolist())) + place + 1000
    raw[at] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("position", [256 + 64, 256 + 70, 256 + 255])
def test_a_damaged_block_is_detected_before_it_is_copied(position: int, engine_of: GetEngine, tmp_path: Path) -> None:
    """A cut at a page border copies the block without reading its rows."""
    engine = engine_of()
    cache = packed(engine)
    engine.extend(cache, tokens(900, 1))
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
    cache = packed(engine)
    engine.extend(cache, tokens(400, 1))
    tensors, extra = tensors_of(cache)
    header = header_of(cache)
    longer = header | {"ids": [*header["ids"], 7]}
    fewer = header | {"packed": 64}
    short = {"open": extra["open"][..., :3, :]}
    for wrong, rows in ((longer, extra), (fewer, extra), (header, short), (header, {"open": extra["open"].float()})):
        write_blocks(tmp_path / "a", tensors, wrong, rows)
        with pytest.raises(CorruptError, match="delete it"):
            load(engine, tmp_path / "a")
    narrow = {name: x[..., 1:] for name, x in tensors.items()}
    write_blocks(tmp_path / "a", narrow, header, extra)
    with pytest.raises(CorruptError, match="does not fit this model"):
        load(engine, tmp_path / "a")


@SMALL
@pytest.mark.parametrize("length", [30, 64, 256, 300, 512, 700])
def test_forks_are_independent(family: str, length: int, engine_of: GetEngine) -> None:
    parent = Pair.new(engine_of(family))
    parent.append(length)
    children = [parent.fork() for _ in range(3)]
    for number, pair in enumerate([*children, parent]):
        pair.step = 10 * number
        pair.append(50 + 100 * number)
    children[1].cut(length // 2)
    parent.cut(length // 3)
    children[2].drop(0.3)
    for pair in (parent, *children, children[0].fork()):
        pair.append(33)
        pair.check_rows()


def storages(cache: QuantizedCache) -> set[int]:
    return {extent.k.codes.untyped_storage().data_ptr() for extent in cache.extents}


@pytest.mark.parametrize("chunking", [None, ChunkSchedule(whole=1, steps=((300, 300),), rest=150)])
def test_whole_blocks_are_shared_and_never_written_to(chunking: ChunkSchedule | None, engine_of: GetEngine) -> None:
    engine = engine_of()
    parent = packed(engine)
    engine.extend(parent, tokens(1000, 1), chunking)
    parent.freeze()
    rows, shared = bits_of(parent), list(parent.extents)
    before = [x.clone() for extent in shared for side in (extent.k, extent.v) for x in side.tensors]
    forks = [parent.fork() for _ in range(10)]
    for number, fork in enumerate((*forks, parent)):
        engine.extend(fork, tokens(150, number))
        places = {x.k.codes.data_ptr() for x in shared}
        private = [extent for extent in fork.extents if extent.k.codes.data_ptr() not in places]
        assert sum(extent.blocks for extent in fork.extents) - sum(extent.blocks for extent in private) == 1000 // BLOCK
        parent_rows = (x[:, :960] for x in rows)
        assert all(torch.equal(a[:, :960], b) for a, b in zip(bits_of(fork), parent_rows, strict=True))
    chance = random.Random(0)
    for fork in (*forks, parent):
        for _ in range(4):
            fork.cut(chance.randrange(fork.next_position + 1))
            engine.extend(fork, tokens(chance.randrange(1, 400), chance.randrange(1000)))
    assert same(before, [x for extent in shared for side in (extent.k, extent.v) for x in side.tensors])


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
    cache = packed(engine)
    engine.extend(cache, tokens(5000, 1), ChunkSchedule())
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
    cache = QuantizedCache(engine.info, FORMATS[0], engine.device, AttentionObserver(recent=4))
    engine.extend(cache, tokens(100, 1))
    fork = cache.fork()
    assert fork.observer is None
    file = engine.extend(fork, tokens(9, 2)).logits
    assert relative(file, engine.extend(cache, tokens(9, 2)).logits) == 0
    assert cache.observer.places.tolist() == [105, 106, 107, 108]
