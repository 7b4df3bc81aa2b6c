"""A packed cache is a dense one whose keys and values are those that come back, whatever it has been through.

Norm: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache as memo
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, CorruptError, ModelError
from memory.disk.blockfile import open_blocks, write_blocks
from memory.disk.packed_file import header_of, restore, tensors_of
from memory.engine.engine import Engine
from memory.engine.extend import Chunking, append
from memory.engine.families import FAMILIES, tiny_model
from memory.engine.packed import BLOCK, PAGE, PackedCache
from memory.engine.tiles import TILE
from memory.engine.witness import Witness
from memory.quantize import Packed, PackFormat, pack
from tests.laws.prompts import relative, tokens
from tests.memory.engine.test_tiles import Live
from tests.references.packed import Dense

FORMATS = (PackFormat(4), PackFormat(8), PackFormat(4, keys="channel"), PackFormat(8, 32, "channel"))
CANDIDATES = [[5, 6, 7], [5, 6], [9], [5, 8, 1, 2], [300, 301]]
EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.bits}-{f.group}-{f.keys}")
SMALL = pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_oss"])
EXACT = 1e-9  # in float64, where no rounding of a sum lifts a number over the edge between two codes
GetEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def engine_of() -> Iterator[GetEngine]:
    """Two layers of every family, built once."""
    made: list[Engine] = []

    @memo
    def make(family: str = "qwen2", dtype: torch.dtype = torch.float64) -> Engine:
        made.append(Engine(tiny_model(family, layers=2, dtype=dtype), "inline"))
        made[-1].model.module.set_experts_implementation("eager")  # others know no float64
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def packed(engine: Engine, format: PackFormat = FORMATS[0]) -> PackedCache:
    return PackedCache(engine.spec, format, engine.decoder.device)


@dataclass
class Pair:
    """A packed cache and what it stands for. Every step compares logits."""

    engine: Engine
    cache: PackedCache
    dense: Dense
    step: int = 0

    @classmethod
    def new(cls, engine: Engine, format: PackFormat = FORMATS[0]) -> Pair:
        return cls(engine, packed(engine, format), Dense(engine.plain, format))

    def append(self, count: int, chunking: Chunking | None = None) -> None:
        self.step += 1
        ids, at = tokens(count, 1000 * self.step + count), 0
        found = self.engine.extend(self.cache, ids, chunking).logits
        whole = chunking is None or count < chunking.whole
        while at < count:
            size = count if whole else chunking.size(int(self.dense.live.sum()), count - at)
            self.dense.append(ids[at : at + size])
            at += size
        assert relative(found, self.dense.logits) < EXACT
        self.check_counters()

    def cut(self, position: int) -> None:
        self.cache.cut(position)
        self.dense.cut(position)
        self.check_counters()

    def drop(self, share: float) -> None:
        keep = torch.rand(self.cache.length, generator=torch.Generator().manual_seed(self.step)) > share
        keep[-1:] = True  # a turn that saw nothing at all would have no logits
        self.dense.drop(self.cache.positions[~keep])
        self.cache.drop(keep)
        self.check_counters()

    def fork(self) -> Pair:
        return Pair(self.engine, self.cache.fork(), self.dense.copy(), self.step + 1)

    def score(self) -> None:
        if self.cache.logits is not None:
            found = self.engine.score(self.cache, CANDIDATES).scores
            assert relative(found, self.dense.score(CANDIDATES)) < EXACT

    def check_counters(self) -> None:
        cache = self.cache
        assert cache.positions.tolist() == self.dense.live.nonzero()[:, 0].tolist()
        assert (cache.next_position, cache.length) == (self.dense.rows, int(self.dense.live.sum()))
        assert cache.packed % PAGE == 0 and 0 <= cache.next_position - cache.packed < PAGE
        assert len(cache.tokens) == cache.next_position

    def check_rows(self) -> None:
        """The rows themselves, as they come back."""
        for layer, stored in enumerate(self.dense.stored.layers):
            for found, expected in ((self.cache.keys(layer), stored.keys), (self.cache.values(layer), stored.values)):
                assert relative(found, expected[0][:, self.dense.live]) < EXACT


def bits_of(cache: PackedCache) -> list[torch.Tensor]:
    """All that a pass over the cache reads."""
    layers = range(cache.spec.layers)
    return [*(cache.keys(layer) for layer in layers), *(cache.values(layer) for layer in layers)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def save(cache: PackedCache, path: Path) -> Path:
    tensors, extra = tensors_of(cache)
    write_blocks(path, tensors, header_of(cache), extra)
    return path


def load(engine: Engine, path: Path) -> PackedCache:
    return restore(open_blocks(path), engine.spec, engine.decoder.device)


# -- it is what comes back of the dense one ----------------------------------------------------------------------------


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
    pair.append(500, Chunking(whole=200, steps=steps, rest=sizes[-1]))
    pair.append(7, Chunking(whole=200))


@SMALL
def test_chunks_of_whole_pages_change_nothing(family: str, engine_of: GetEngine) -> None:
    """Where chunks end at page borders every row sees the others as in one pass: packed, or later."""
    engine = engine_of(family)
    one, many = packed(engine), packed(engine)
    expected = engine.extend(one, tokens(700, 1)).logits
    found = engine.extend(many, tokens(700, 1), Chunking(whole=1, steps=((200, 192), (500, 320)), rest=128)).logits
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
@settings(max_examples=40, deadline=None)
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


# -- cutting, rewinding, dropping --------------------------------------------------------------------------------------


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


class Stop(Exception):
    """A pass that somebody broke off."""


def fail(engine: Engine, cache: PackedCache, count: int) -> None:
    """A pass that ends in the middle: the first layer is written, the second is not."""

    def stop(*_: object) -> None:
        raise Stop

    handle = engine.decoder.layers[1].register_forward_pre_hook(stop)
    try:
        with pytest.raises(Stop):
            engine.extend(cache, tokens(count, 99))
    finally:
        handle.remove()


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


# -- forks -------------------------------------------------------------------------------------------------------------


@SMALL
@pytest.mark.parametrize("length", [30, 64, 256, 300, 512, 700])
def test_forks_go_their_own_ways(family: str, length: int, engine_of: GetEngine) -> None:
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


def storages(cache: PackedCache) -> set[int]:
    return {extent.k.codes.untyped_storage().data_ptr() for extent in cache.extents}


@pytest.mark.parametrize("chunking", [None, Chunking(whole=1, steps=((300, 300),), rest=150)])
def test_whole_blocks_are_shared_and_never_written_to(chunking: Chunking | None, engine_of: GetEngine) -> None:
    """A thousand rows serve ten forks, but for the last block; whatever the forks and their parent do, they stay."""
    engine = engine_of()
    parent = packed(engine)
    engine.extend(parent, tokens(1000, 1), chunking)
    parent.freeze()
    rows, shared = bits_of(parent), list(parent.extents)
    before = [x.clone() for extent in shared for side in (extent.k, extent.v) for x in side.tensors]
    forks = [parent.fork() for _ in range(10)]
    for number, fork in enumerate((*forks, parent)):
        engine.extend(fork, tokens(150, number))
        own = [
            extent
            for extent in fork.extents
            if not any(extent.k.codes.data_ptr() == x.k.codes.data_ptr() for x in shared)
        ]
        assert sum(extent.blocks for extent in fork.extents) - sum(extent.blocks for extent in own) == 1000 // BLOCK
        parent_rows = (x[:, :960] for x in rows)
        assert all(torch.equal(a[:, :960], b) for a, b in zip(bits_of(fork), parent_rows, strict=True))
    chance = random.Random(0)
    for fork in (*forks, parent):
        for _ in range(4):
            fork.cut(chance.randrange(fork.next_position + 1))
            engine.extend(fork, tokens(chance.randrange(1, 400), chance.randrange(1000)))
    assert same(before, [x for extent in shared for side in (extent.k, extent.v) for x in side.tensors])


def test_rows_go_on_in_place_whoever_forked_them(engine_of: GetEngine) -> None:
    """Turn by turn a fork takes its parent's place: no row is copied, and there are few extents."""
    engine = engine_of()
    cache = packed(engine)
    for turn in range(40):
        before = list(cache.extents)
        fork, cache = cache, cache.fork()
        engine.extend(cache, tokens(40, turn))
        assert all(a is b for a, b in zip(before, cache.extents, strict=False))
        engine.extend(fork, tokens(3, turn))  # who comes second copies a block
    assert len(cache.extents) <= 4


def test_what_was_cut_away_takes_no_room_for_long(engine_of: GetEngine) -> None:
    """Little that is left of much moves to a place of its own."""
    engine = engine_of()
    cache = packed(engine)
    engine.extend(cache, tokens(5000, 1), Chunking())
    before, kept = storages(cache), list(cache.extents)  # or the new place might be the old one
    cache.cut(600)
    engine.extend(cache, tokens(100, 2))
    assert kept and not before & storages(cache)
    engine.extend(cache, tokens(1500, 1))
    before = storages(cache)
    cache.cut(2000)
    engine.extend(cache, tokens(100, 2))
    assert before & storages(cache), "much of it stays where it is"


def test_a_fork_has_no_witness(engine_of: GetEngine) -> None:
    engine = engine_of()
    cache = PackedCache(engine.spec, FORMATS[0], engine.decoder.device, Witness(recent=4))
    engine.extend(cache, tokens(100, 1))
    fork = cache.fork()
    assert fork.witness is None
    found = engine.extend(fork, tokens(9, 2)).logits
    assert relative(found, engine.extend(cache, tokens(9, 2)).logits) == 0
    assert cache.witness.places.tolist() == [105, 106, 107, 108]


# -- files -------------------------------------------------------------------------------------------------------------


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


# -- what it takes -----------------------------------------------------------------------------------------------------


def test_a_layer_is_never_whole_in_full_precision() -> None:
    """A turn behind 8,192 rows, and the reading of them all: tiles of 2,048 rows, one at a time."""
    model = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32)
    cache = PackedCache(model.spec, FORMATS[0], model.decoder.device)
    layer = 2 * 4 * TILE * 4 * 32 * 4  # bytes of keys and values of 8,192 rows
    with torch.inference_mode():
        for chunk in torch.tensor(tokens(4 * TILE, 1)).split(512):
            append(model.decoder, cache, chunk, last=False)
        model.decoder.rope.at(torch.zeros(1, dtype=torch.long), 5 * TILE)  # its tables grow now and then
        for count, cut in ((16, 0), (1, 0), (30, 0), (5, 4 * TILE - 30)):
            if cut:
                cache.cut(cut)
            with Live() as live:
                append(model.decoder, cache, torch.tensor(tokens(count, 2)))
            assert live.peak < layer, "keys and values of one layer"
            assert live.largest <= layer // 8, "one side of a tile"
            cache.cut(4 * TILE)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("tokens_", [4096, 4096 + 63, 5000])
def test_bytes(heads: int, tokens_: int, tmp_path: Path) -> None:
    """At most 30 % of float16, in memory and on the disk, where 64 divides what a token has."""
    with Engine(tiny_model("qwen2", layers=2, head_dim=32, num_key_value_heads=heads, dtype=torch.bfloat16)) as engine:
        cache = packed(engine)
        engine.extend(cache, tokens(tokens_, 1), Chunking())
        full = 2 * tokens_ * engine.spec.layers * 2 * heads * 32
        assert engine.spec.bytes_per_token * tokens_ == full
        assert 0.28 * full < cache.nbytes < 0.30 * full
        held = sum(extent.k.nbytes + extent.v.nbytes for extent in cache.extents)
        assert held < 1.1 * 0.30 * full, "room to grow included"
        ids = sum(len(str(token)) + 1 for token in cache.tokens)
        assert save(cache, tmp_path / "a").stat().st_size - ids < 0.31 * full + 4096


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_no_window_reaches_is_not_unpacked(
    share: float, engine_of: GetEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sliding layer sees open rows only, a full layer all tiles; rows that were dropped move the window."""
    pair = Pair.new(engine_of("gemma3_text"))
    pair.append(2 * TILE + 100)
    pair.drop(share)
    counts: list[int] = []
    real = Packed.unpack
    monkeypatch.setattr(Packed, "unpack", lambda self, dtype: counts.append(self.tokens) or real(self, dtype))
    found = pair.engine.extend(pair.cache.fork(), tokens(3, 1)).logits
    assert counts == [TILE, TILE, TILE, TILE, PAGE, PAGE]
    monkeypatch.undo()
    assert relative(found, pair.dense.copy().append(tokens(3, 1))[-1:]) < EXACT
    pair.append(TILE - 100)
    pair.score()


def test_rows_are_counted_as_they_lie(engine_of: GetEngine) -> None:
    engine = engine_of("qwen2", torch.bfloat16)
    cache = packed(engine)
    assert cache.nbytes == 0
    engine.extend(cache, tokens(63, 1))
    assert cache.nbytes == 63 * engine.spec.bytes_per_token
    engine.extend(cache, [1])
    k, v = (torch.zeros(engine.spec.layers, engine.spec.kv_heads, PAGE, engine.spec.head_dim) for _ in "kv")
    assert cache.nbytes == pack(k, FORMATS[0]).nbytes + pack(v, FORMATS[0]).nbytes
    for family in FAMILIES:
        spec = engine_of(family).spec
        assert spec.bytes_per_token == 2 * spec.layers * spec.kv_heads * spec.head_dim * 8
