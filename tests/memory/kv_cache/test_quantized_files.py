"""A packed cache in a file: restored it gives the same bits, never reaches its file, and finds every damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keep_agent.errors import CorruptError
from memory.files.block_file import open_blocks, write_blocks
from memory.kv_cache.quantized_file import header_of, tensors_of
from tests.laws.prompts import tokens
from tests.memory.kv_cache.pairs import SMALL, GetEngine, bits_of, load, packed, same, save


@SMALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [1, 63, 64, 255, 256, 300, 512, 777])
def test_a_restored_cache_gives_the_same_bits(
    family: str, dtype: torch.dtype, length: int, engine_of: GetEngine, tmp_path: Path
) -> None:
    """Hot in several extents, restored in two, forked: tiles do not depend on where rows lie."""
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
        bits = [engine.extend(one, tokens(count, count)).logits for one in (hot, warm, forked)]
        assert torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2])
    again = load(engine, save(warm.fork(), tmp_path / "b"))
    assert same(bits_of(hot), bits_of(again))


def test_what_is_restored_never_reaches_its_file(engine_of: GetEngine, tmp_path: Path) -> None:
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
    found = open_blocks(path)
    codes = found.tensor("k.codes")
    place = codes[block].data_ptr() - codes.data_ptr()
    raw = bytearray(path.read_bytes())
    at = raw.index(bytes(codes.flatten()[:64].tolist())) + place + 1000
    raw[at] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("position", [256 + 64, 256 + 70, 256 + 255])
def test_a_damaged_block_is_found_before_it_is_copied(position: int, engine_of: GetEngine, tmp_path: Path) -> None:
    """Also where it is cut at the border of a page, and nothing of it is read."""
    engine = engine_of()
    cache = packed(engine)
    engine.extend(cache, tokens(900, 1))
    path = save(cache, tmp_path / "a")
    damage(path, 1)
    warm = load(engine, path)
    warm.fork()
    with pytest.raises(CorruptError, match="block 1 of 4"):
        warm.cut(position)
        engine.extend(warm, tokens(200, 3))  # the block is copied, and no file says what it should be
    with pytest.raises(CorruptError, match="block 1 of 4"):
        tensors_of(load(engine, path))
    with pytest.raises(CorruptError, match="block 1 of 4"):
        engine.extend(load(engine, path), [1])
    safe = load(engine, path)
    safe.cut(256)
    engine.extend(safe, tokens(10, 2))
    damage(path, 3)  # the last block is copied at once
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
