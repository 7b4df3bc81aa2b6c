"""Quantization of keys and values: rounding errors, bytes at rest and during a pass, views, and refused numbers."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, ModelError
from memory.engine.attention.tiled import TILE
from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import tiny_model
from memory.engine.scheduler.batch import Batch
from memory.engine.transformers.append import append
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import Axis, Packed, PackFormat, bytes_per_token, pack
from memory.kv_cache.quantized import PAGE, QuantizedCache
from tests import beside
from tests.laws.prompts import relative, tokens
from tests.memory.engine.attention.test_tiled import TensorMeter
from tests.memory.kv_cache.pairs import EXACT, FORMATS, GetEngine, Pair, filled, packed, save

ALONG = get_args(Axis)
SHAPES = [(6, 32), (2, 64), (3, 80), (1, 96), (4, 128), (1, 256), (5, 7), (1, 1), (3, 4), (1, 33)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def per_number(packed: Packed) -> torch.Tensor:
    grid = packed.grid
    wide = packed.scale.float().repeat_interleave(grid.span, -2).repeat_interleave(grid.size, -1)
    wide = wide[..., : packed.kv_heads * packed.head_dim]
    return wide.unflatten(-1, (packed.kv_heads, packed.head_dim)).transpose(-3, -2)


def check(x: torch.Tensor, format: PackFormat, along: Axis) -> Packed:
    """Check that errors are at most half a scale, plus float32's rounding and subnormals."""
    packed = pack(x, format, along)
    back = packed.unpack(torch.float32)
    assert back.shape == x.shape == packed.shape and back.is_contiguous()
    rounding = 1e-6 * (x.float().abs() + per_number(packed) * (1 << format.bits)) + torch.finfo(torch.float32).tiny
    assert bool(((back - x.float()).abs() <= per_number(packed) / 2 + rounding).all())
    return packed


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("kv_heads", "head_dim"), SHAPES)
def test_errors_are_within_half_a_scale(kv_heads: int, head_dim: int, bits: int, along: Axis) -> None:
    x = numbers(2, 3, kv_heads, 128, head_dim) * 10 ** numbers(kv_heads, 1, head_dim, seed=1)
    packed = check(x, PackFormat(bits), along)
    coarse = packed.scale.float() * ((1 << bits) - 1)
    assert float(coarse.amax()) < 1.01 * float(x.amax() - x.amin()), "no scale may exceed the range of its group"


@given(
    values=st.lists(st.floats(-6e4, 6e4, width=32), min_size=1, max_size=150),
    offset=st.sampled_from([0.0, 0.1, -1000.3, 6e4]),
    stretch=st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 1.0]),
    bits=st.sampled_from([4, 8]),
    along=st.sampled_from(ALONG),
)
@example(values=[2.0**-126], offset=0.0, stretch=1e-6, bits=8, along="token")  # the scale is below float32's range
@settings(max_examples=200)
def test_any_spread_and_offset(values: list[float], offset: float, stretch: float, bits: int, along: Axis) -> None:
    x = (torch.tensor(values) * stretch + offset).clamp(-65504, 65504).view(1, -1, 1)
    if along == "channel":
        x = x.expand(2, -1, 8).transpose(1, 2)  # 8 tokens
    check(x, PackFormat(bits, group=8), along)


@pytest.mark.parametrize("along", ALONG)
def test_constants_and_subnormal_scales(along: Axis) -> None:
    for value in (0.0, 1.0, -3.5, 65504.0, 2.0**-24):
        x = torch.full((2, 64, 32), value)
        assert torch.equal(pack(x, PackFormat(), along).unpack(torch.float32), x)
    check(torch.full((2, 64, 32), math.pi), PackFormat(), along)
    check(numbers(2, 64, 32) * 1e-8, PackFormat(), along)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("along", ALONG)
def test_dtypes(dtype: torch.dtype, along: Axis) -> None:
    x = numbers(2, 6, 64, 32).to(dtype)
    packed = check(x, PackFormat(8), along)
    assert torch.equal(packed.unpack(dtype), packed.unpack(torch.float32).to(dtype))
    assert pack(x[:, :, :0], PackFormat(), along).unpack(dtype).shape == (2, 6, 0, 32)


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_float32_while_another_thread_loads_a_model(bits: int) -> None:
    packed = pack(numbers(2, 64, 32), PackFormat(bits), "token")
    back = packed.unpack(torch.float32)
    with beside.loading():
        assert torch.equal(packed.unpack(torch.float32), back)


def test_a_group_may_span_heads_and_a_byte_holds_two_codes() -> None:
    """Six heads of 32 numbers are three groups of 64; byte i holds the numbers i and i + 96."""
    flat = torch.arange(192.0) % 16
    packed = pack(flat.view(6, 1, 32), PackFormat())
    assert packed.codes.shape == (1, 96) and packed.scale.shape == packed.bias.shape == (1, 3)
    assert packed.codes[0].tolist() == [17 * (number % 16) for number in range(96)]
    assert torch.equal(packed.unpack(torch.float32), flat.view(6, 1, 32))


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("kv_heads", "head_dim"), SHAPES)
def test_bytes(kv_heads: int, head_dim: int, bits: int, along: Axis) -> None:
    format, flat = PackFormat(bits, keys=along), kv_heads * head_dim
    x = numbers(kv_heads, 64, head_dim)
    keys, values = pack(x, format, along), pack(x, format)
    assert keys.nbytes + values.nbytes <= 64 * bytes_per_token(kv_heads, head_dim, format)
    assert keys.nbytes + values.nbytes > 64 * (bytes_per_token(kv_heads, head_dim, format) - 1)
    grid, share = format.grid(flat), values.nbytes / (64 * 2 * flat)
    if flat % 64 == 0:
        assert values.nbytes == 64 * (flat * bits // 8 + 4 * flat // 64)
        assert share <= 0.30 if bits == 4 else share <= 0.54
    else:
        implied = (bits / 8 + 4 / grid.size) / 2
        assert share <= implied * grid.width / flat + 0.01


def test_groups_of_odd_sizes() -> None:
    """Groups have the size of a divisor, or are padded if that takes fewer bytes."""
    grids = {flat: PackFormat().grid(flat) for flat in (192, 160, 80, 96, 72, 100, 20, 5)}
    assert {flat: (grid.width, grid.size) for flat, grid in grids.items()} == {
        192: (192, 64), 160: (160, 32), 80: (80, 16), 96: (96, 32), 72: (80, 16), 100: (128, 64), 20: (32, 32),
        5: (8, 8),
    }  # fmt: skip
    assert PackFormat(group=32).grid(192).size == 32


@pytest.mark.parametrize("along", ALONG)
def test_parts_are_views(along: Axis) -> None:
    x, format = numbers(3, 2, 4, 192, 16), PackFormat()
    packed, whole = pack(x, format, along), pack(x, format, along).unpack(torch.float32)
    part = packed[1].part(64, 192)
    assert torch.equal(part.unpack(torch.float32), whole[1, :, :, 64:192])
    assert part.codes.untyped_storage().data_ptr() == packed.codes.untyped_storage().data_ptr()
    assert torch.equal(packed[:, 1].unpack(torch.float32), whole[:, 1])
    assert torch.equal(packed[2, 0].part(0, 64).unpack(torch.float32), whole[2, 0, :, :64])
    assert packed[1].shape == (2, 4, 192, 16) and packed.tokens == 192 and packed[0].nbytes * 3 == packed.nbytes
    with pytest.raises(ConfigError, match="3 parts: .* has 2 dimensions before kv_heads"):
        packed[0, 0, 5]


@pytest.mark.parametrize("along", ALONG)
def test_an_empty_tensor_is_filled_in_pieces(along: Axis) -> None:
    x, format = numbers(2, 3, 192, 32), PackFormat(keys=along)
    room, whole = Packed.empty(x.shape, format, along), pack(x, format, along)
    assert not room.unpack(torch.float32).any()
    for start, stop in ((0, 64), (128, 192), (64, 128)):
        room.write(start, pack(x[:, :, start:stop], format, along))
    assert all(torch.equal(a, b) for a, b in zip(room.tensors, whole.tensors, strict=True))
    with pytest.raises(ConfigError, match="pack both in the same format"):
        room.write(0, pack(x, PackFormat(8), along))


def test_the_same_bytes_every_time() -> None:
    """Packed rows are stored under checksums, so their layout may not change."""
    x = (torch.arange(2 * 64 * 32) * 37 % 101).view(2, 64, 32) / 8 - 3
    for along, name in (("token", "9ca9dc3a8a67a890"), ("channel", "e36de0ea1465c97a")):
        for given_x in (x, x.clone(), x.mT.contiguous().mT, x.double()):
            digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in pack(given_x, PackFormat(), along).tensors))
            assert digest.hexdigest()[:16] == name


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e6, 3e38])
def test_numbers_that_do_not_fit_are_refused(value: float, along: Axis) -> None:
    x = numbers(2, 64, 32).bfloat16()
    x[1, 3, 7] = value
    with pytest.raises(ModelError, match="have no float16 scale and bias in 4 bits"):
        pack(x, PackFormat(), along)


def test_tokens_that_fill_no_group_are_refused_by_channel() -> None:
    x = numbers(2, 100, 32)
    assert pack(x, PackFormat(keys="channel")).tokens == 100, "values are packed by token"
    with pytest.raises(ConfigError, match="100 tokens are not a multiple of 64.* keep the last 36"):
        pack(x, PackFormat(), "channel")
    with pytest.raises(ConfigError, match="not a multiple of 64"):
        pack(x[:, :64], PackFormat(), "channel").part(0, 32)


def test_a_layer_is_never_whole_in_full_precision() -> None:
    model = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32)
    cache = QuantizedCache(model.spec, FORMATS[0], model.decoder.device)
    layer = 2 * 4 * TILE * 4 * 32 * 4  # bytes of keys and values of 8,192 rows
    with torch.inference_mode():
        for chunk in torch.tensor(tokens(4 * TILE, 1)).split(512):
            append(model.decoder, cache, chunk, last=False)
        model.decoder.rope.angles_at(torch.zeros(1, dtype=torch.long), 5 * TILE)  # the RoPE tables do not grow later
        for count, cut in ((16, 0), (1, 0), (30, 0), (5, 4 * TILE - 30)):
            if cut:
                cache.cut(cut)
            with TensorMeter() as meter:
                append(model.decoder, cache, torch.tensor(tokens(count, 2)))
            assert meter.peak < layer, "keys and values of one layer"
            assert meter.largest <= layer // 8, "one side of a tile"
            cache.cut(4 * TILE)


@pytest.mark.parametrize("agents", [2, 32])
@pytest.mark.parametrize("format", [FORMATS[0], FORMATS[2]], ids=lambda f: f"{f.bits}-{f.keys}")
def test_a_batch_takes_no_more_than_one_agent(format: PackFormat, agents: int) -> None:
    """8,192 rows in all, of one agent or of several: a batch unpacks no more at a time."""
    model, rows = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32), 4 * TILE
    layer = 2 * rows * 4 * 32 * 4
    with torch.inference_mode():
        model.decoder.rope.angles_at(torch.zeros(1, dtype=torch.long), rows + TILE)
        alone, share_cache = (QuantizedCache(model.spec, format, model.decoder.device) for _ in range(2))
        for cache, count in ((alone, rows), (share_cache, rows // agents)):
            for chunk in torch.tensor(tokens(count, 1)).split(512):
                append(model.decoder, cache, chunk, last=False)
        with TensorMeter() as expected:
            append(model.decoder, alone, torch.tensor([7]))
        batch = Batch(model.decoder, [share_cache.fork() for _ in range(agents)])
        batch.step([7] * agents)  # allocates the room of the last rows
        with TensorMeter() as meter:
            batch.step([7] * agents)
    at_rest = agents * share_cache.tail.nbytes  # rows of incomplete pages are not packed
    assert meter.peak - at_rest <= expected.peak < layer / 2, "keys and values of one layer"
    assert meter.largest <= max(layer // 4, at_rest), "keys or values of a tile"


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("tokens_", [4096, 4096 + 63, 5000])
def test_bytes_in_memory_and_on_the_disk(heads: int, tokens_: int, tmp_path: Path) -> None:
    """At most 30 % of float16, in memory and on the disk, if 64 divides the numbers per token."""
    model = tiny_model("qwen2", layers=2, head_dim=32, num_key_value_heads=heads, dtype=torch.bfloat16)
    with TransformersEngine(model) as engine:
        cache = filled(engine, tokens_, chunking=ChunkSchedule())
        full = 2 * tokens_ * engine.info.layers * 2 * heads * 32
        assert engine.info.bytes_per_token * tokens_ == full and 0.28 * full < cache.nbytes < 0.30 * full
        stored = sum(extent.k.nbytes + extent.v.nbytes for extent in cache.extents)
        assert stored < 1.1 * 0.30 * full, "reserved room included"
        ids = sum(len(str(token)) + 1 for token in cache.tokens)
        assert save(cache, tmp_path / "a").stat().st_size - ids < 0.31 * full + 4096


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_unseen_tiles_are_not_unpacked(share: float, engine_of: GetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sliding layer reads open rows only, a full layer all tiles; the window counts positions, not live rows."""
    pair = Pair.new(engine_of("gemma3_text"), rows=2 * TILE + 100)
    pair.drop(share)
    counts: list[int] = []
    real = Packed.unpack
    monkeypatch.setattr(Packed, "unpack", lambda self, dtype: counts.append(self.tokens) or real(self, dtype))
    logits = pair.engine.extend(pair.cache.fork(), tokens(3, 1)).logits
    assert counts == [TILE, TILE, TILE, TILE, PAGE, PAGE]
    monkeypatch.undo()
    assert relative(logits, pair.dense.copy().append(tokens(3, 1))[-1:]) < EXACT
    pair.append(TILE - 100)
    pair.score()


def test_bytes_of_open_and_packed_rows(engine_of: GetEngine) -> None:
    engine = engine_of("qwen2", torch.bfloat16)
    cache = packed(engine)
    assert cache.nbytes == 0
    engine.extend(cache, tokens(63, 1))
    assert cache.nbytes == 63 * engine.info.bytes_per_token
    engine.extend(cache, [1])
    k, v = (torch.zeros(engine.info.layers, engine.info.kv_heads, PAGE, engine.info.head_dim) for _ in "kv")
    assert cache.nbytes == pack(k, FORMATS[0]).nbytes + pack(v, FORMATS[0]).nbytes
