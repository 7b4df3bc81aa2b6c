"""Tiled attention equals attention over all keys at once, and keeps at most one tile in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from memory.engine.attention.kernels import KEY_MULTIPLE, MaskBlock, bias_of, causal_plan, grouped_attention
from memory.engine.attention.tiled import Tile, tiled_attention, unpacked_tiles
from memory.kv_cache.quantization import PackFormat, pack
from tests.memory.engine.attention.test_kernels import Case, cases

DTYPE, DIM, SCALE = torch.float64, 8, 0.3
CUTS = st.lists(st.integers(0, 400), max_size=9)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def cut(k: torch.Tensor, v: torch.Tensor, cuts: Sequence[int]) -> Iterator[Tile]:
    """Yield the tiles between ``cuts``; equal cuts make an empty tile."""
    bounds = sorted([0, *(min(c, k.shape[2]) for c in cuts), k.shape[2]])
    return ((k[:, :, a:b], v[:, :, a:b]) for a, b in pairwise(bounds))


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Sequence[MaskBlock], **knobs: Any) -> torch.Tensor:
    """Apply the kernel to all keys at once, with padding that its blocks mask."""
    padded = (functional.pad(x, (0, 0, 0, KEY_MULTIPLE)) for x in (k, v))
    return grouped_attention(q, *padded, blocks, SCALE, **knobs)


def agree(blocks: list[MaskBlock], rows: int, keys: int, cuts: Sequence[int], heads: tuple[int, int] = (4, 2)) -> None:
    q, (k, v) = randn(2, heads[0], rows, DIM), randn(2, 2, heads[1], keys, DIM, seed=1)
    result = tiled_attention(q, cut(k, v, cuts), blocks, SCALE)
    torch.testing.assert_close(result, dense(q, k, v, blocks))


@given(cases(DTYPE), CUTS)
@settings(max_examples=180)
def test_tiles_of_any_plan_equal_all_keys_at_once(case: Case, cuts: list[int]) -> None:
    blocks, visible = case
    agree(blocks, *visible.shape, cuts)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
def test_prefixes_bodies_and_rows_without_bias(heads: tuple[int, int]) -> None:
    bias = bias_of(torch.rand(56, 4, generator=torch.Generator().manual_seed(0)) < 0.5, DTYPE)
    blocks = [MaskBlock(0, 40, 5, 34, None, prefix=3), MaskBlock(40, 96, 2, 66, bias)]
    for cuts in ([], [2, 3, 4, 5], [4], [33, 34, 62, 63], range(96)):
        agree(blocks, 96, 96, cuts, heads)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
def test_sinks_and_softcap(softcap: float | None, with_sinks: bool, heads: int, kv_heads: int) -> None:
    q, (k, v) = randn(3, heads, 200, DIM), randn(2, 3, kv_heads, 200, DIM, seed=1)
    sinks = 3 * randn(heads, seed=2) if with_sinks else None
    every = torch.arange(200)
    blocks = causal_plan(every, every, DTYPE).blocks(None)
    expected = dense(q, k, v, blocks, softcap=softcap, sinks=sinks)
    result = tiled_attention(q, cut(k, v, [1, 64, 130]), blocks, SCALE, softcap, sinks)
    torch.testing.assert_close(result, expected)


@given(st.lists(st.integers(1, 120), min_size=1, max_size=4), st.integers(1, 3), CUTS)
@settings(max_examples=40)
def test_requests_of_different_lengths(lengths: list[int], rows: int, cuts: list[int]) -> None:
    """Left-padded requests, each with its own bias, equal single requests."""
    longest, columns = max(lengths), torch.arange(max(lengths))
    q, (k, v) = randn(len(lengths), 4, rows, DIM), randn(2, len(lengths), 2, longest, DIM, seed=1)
    padded = columns < longest - torch.tensor(lengths)[:, None]
    bias = bias_of(~padded[:, None].expand(-1, rows, -1), DTYPE)
    result = tiled_attention(q, cut(k, v, cuts), [MaskBlock(0, rows, 0, longest, bias)], SCALE)
    for number, length in enumerate(lengths):
        part = (x[number : number + 1, :, longest - length :] for x in (k, v))
        expected = dense(q[number : number + 1], *part, [MaskBlock(0, rows, 0, length, None)])
        torch.testing.assert_close(result[number : number + 1], expected)


def test_the_output_of_rows_without_visible_keys_is_zero() -> None:
    q, (k, v) = randn(1, 2, 3, DIM), randn(2, 1, 2, 40, DIM, seed=1)
    visible = torch.ones(3, 40, dtype=torch.bool)
    visible[1] = False
    visible[2, :30] = False
    result = tiled_attention(q, cut(k, v, [10, 20]), [MaskBlock(0, 3, 0, 40, bias_of(visible, DTYPE))], SCALE)
    assert not result[:, 1].any()
    assert bool(result[:, [0, 2]].isfinite().all()) and bool(result[:, [0, 2]].all())


def test_large_scores_do_not_overflow() -> None:
    q, (k, v) = 1e3 * randn(1, 2, 5, DIM), 1e3 * randn(2, 1, 2, 64, DIM, seed=1)
    blocks = [MaskBlock(0, 5, 0, 64, None)]
    expected = dense(q, k, v, blocks)
    torch.testing.assert_close(tiled_attention(q, cut(k, v, range(64)), blocks, SCALE), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_narrow_dtypes_sum_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    q, (k, v) = randn(2, 6, 40, 32), randn(2, 2, 2, 1500, 32, seed=1)
    rows, every = torch.arange(1460, 1500), torch.arange(1500)
    expected = dense(q, k, v, causal_plan(rows, every, DTYPE).blocks(None))
    narrow = [x.to(dtype) for x in (q, k, v)]
    blocks = causal_plan(rows, every, dtype).blocks(None)
    result = tiled_attention(narrow[0], cut(*narrow[1:], range(0, 1500, 50)), blocks, SCALE)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("keys", ["token", "channel"])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_tiles_equal_unpacked_keys_and_values(bits: int, keys: str) -> None:
    format = PackFormat(bits, keys=keys)
    q, (k, v) = randn(2, 6, 30, 32), randn(2, 2, 2, 320, 32, seed=1)
    packed_k, packed_v = pack(k, format, format.keys), pack(v, format)
    blocks = causal_plan(torch.arange(290, 320), torch.arange(320), DTYPE).blocks(None)
    expected = dense(q, packed_k.unpack(DTYPE), packed_v.unpack(DTYPE), blocks)
    for rows in (64, 128, 1000):
        result = tiled_attention(q, unpacked_tiles(packed_k, packed_v, DTYPE, rows), blocks, SCALE)
        torch.testing.assert_close(result, expected)
    exact = dense(q, k, v, blocks)
    assert float((result - exact).abs().mean()) < {4: 0.2, 8: 0.015}[bits] * float(exact.abs().mean())


class TensorMeter(TorchDispatchMode):
    """Meter of the floating point tensors made within it: their peak in bytes, and the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.largest = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point() and out.dtype != torch.float16:  # not scales
            storage = StorageWeakRef(out.untyped_storage())
            self._live[storage.cdata] = (storage, out.untyped_storage().nbytes())
        self._live = {name: (ref, size) for name, (ref, size) in self._live.items() if not ref.expired()}
        sizes = [size for _, size in self._live.values()]
        self.peak, self.largest = max(self.peak, sum(sizes)), max([self.largest, *sizes])
        return out


def peaks(tokens: int, rows: int = 256) -> TensorMeter:
    """Meter attention over packed tokens of 128 numbers each, in tiles of ``rows``."""
    k, v = (pack(x.float(), PackFormat()) for x in randn(2, 1, 4, tokens, 32))
    q, blocks = randn(1, 8, 4, 32).float(), [MaskBlock(0, 4, 0, tokens, None)]
    with torch.inference_mode(), TensorMeter() as meter:
        tiled_attention(q, unpacked_tiles(k, v, torch.float32, rows), blocks, SCALE)
    return meter


def test_memory_in_full_precision_does_not_grow_with_the_number_of_tokens() -> None:
    tile = 256 * 128 * 4
    short, long = peaks(2048), peaks(8192)
    assert short.peak == long.peak and long.largest == tile
    assert long.peak < 4 * tile, "keys, values, and temporary tensors of unpacking"
    assert peaks(2048, rows=2048).largest == 8 * tile


def test_a_tile_is_freed_before_the_next_is_made() -> None:
    storages: list[StorageWeakRef] = []

    def tiles() -> Iterator[Tile]:
        for _ in range(4):
            assert all(storage.expired() for storage in storages)
            tile = [randn(1, 2, 8, DIM) for _ in "kv"]
            storages.extend(StorageWeakRef(x.untyped_storage()) for x in tile)
            yield tile.pop(0), tile.pop()

    tiled_attention(randn(1, 2, 3, DIM), tiles(), [MaskBlock(0, 3, 0, 32, None)], SCALE)
    assert len(storages) == 8
