"""Quantization of keys and values: rounding errors, bytes, views, and refused numbers."""

from __future__ import annotations

import hashlib
import math
from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, ModelError
from memory.kv_cache.quantization import Along, Packed, PackFormat, bytes_per_token, pack
from tests import beside

ALONG = get_args(Along)
SHAPES = [(6, 32), (2, 64), (3, 80), (1, 96), (4, 128), (1, 256), (5, 7), (1, 1), (3, 4), (1, 33)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def per_number(packed: Packed) -> torch.Tensor:
    """Return the scale of every number, (..., kv_heads, tokens, head_dim)."""
    grid = packed.grid
    wide = packed.scale.float().repeat_interleave(grid.span, -2).repeat_interleave(grid.size, -1)
    wide = wide[..., : packed.kv_heads * packed.head_dim]
    return wide.unflatten(-1, (packed.kv_heads, packed.head_dim)).transpose(-3, -2)


def check(x: torch.Tensor, format: PackFormat, along: Along) -> Packed:
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
def test_errors_are_within_half_a_scale(kv_heads: int, head_dim: int, bits: int, along: Along) -> None:
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
def test_any_spread_and_offset(values: list[float], offset: float, stretch: float, bits: int, along: Along) -> None:
    x = (torch.tensor(values) * stretch + offset).clamp(-65504, 65504).view(1, -1, 1)
    if along == "channel":
        x = x.expand(2, -1, 8).transpose(1, 2)  # 8 tokens
    check(x, PackFormat(bits, group=8), along)


@pytest.mark.parametrize("along", ALONG)
def test_constants_and_subnormal_scales(along: Along) -> None:
    for value in (0.0, 1.0, -3.5, 65504.0, 2.0**-24):
        x = torch.full((2, 64, 32), value)
        assert torch.equal(pack(x, PackFormat(), along).unpack(torch.float32), x)
    check(torch.full((2, 64, 32), math.pi), PackFormat(), along)
    check(numbers(2, 64, 32) * 1e-8, PackFormat(), along)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("along", ALONG)
def test_dtypes(dtype: torch.dtype, along: Along) -> None:
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


def test_outlying_channels_cost_less_by_channel() -> None:
    """KIVI's case: by token, one channel far from zero takes most codes of its group."""
    x = numbers(2, 128, 32)
    x[:, :, 5] += 50
    errors = {along: (pack(x, PackFormat(), along).unpack(torch.float32) - x).abs().mean() for along in ALONG}
    assert errors["channel"] < errors["token"] / 5


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("kv_heads", "head_dim"), SHAPES)
def test_bytes(kv_heads: int, head_dim: int, bits: int, along: Along) -> None:
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
def test_parts_are_views(along: Along) -> None:
    x, format = numbers(3, 2, 4, 192, 16), PackFormat()
    packed, whole = pack(x, format, along), pack(x, format, along).unpack(torch.float32)
    part = packed[1].part(64, 192)
    assert torch.equal(part.unpack(torch.float32), whole[1, :, :, 64:192])
    assert part.codes.untyped_storage().data_ptr() == packed.codes.untyped_storage().data_ptr()
    assert torch.equal(packed[:, 1].unpack(torch.float32), whole[:, 1])
    assert torch.equal(packed[2, 0].part(0, 64).unpack(torch.float32), whole[2, 0, :, :64])
    assert packed[1].shape == (2, 4, 192, 16) and packed.tokens == 192 and packed[0].nbytes * 3 == packed.nbytes
    with pytest.raises(ConfigError, match="3 parts, packed .* 2 dimensions in front"):
        packed[0, 0, 5]


@pytest.mark.parametrize("along", ALONG)
def test_an_empty_tensor_is_filled_in_pieces(along: Along) -> None:
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
def test_numbers_that_do_not_fit_are_refused(value: float, along: Along) -> None:
    x = numbers(2, 64, 32).bfloat16()
    x[1, 3, 7] = value
    with pytest.raises(ModelError, match="have no float16 scale and bias in 4 bits"):
        pack(x, PackFormat(), along)


def test_tokens_that_fill_no_group_are_refused_by_channel() -> None:
    x = numbers(2, 100, 32)
    assert pack(x, PackFormat(keys="channel")).tokens == 100, "values are packed by token"
    with pytest.raises(ConfigError, match="100 tokens are no multiple of 64.* keep the last 36"):
        pack(x, PackFormat(), "channel")
    with pytest.raises(ConfigError, match="no multiple of 64"):
        pack(x[:, :64], PackFormat(), "channel").part(0, 32)
