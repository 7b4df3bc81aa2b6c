"""Benchmark of quantization: packing and unpacking of 800 tokens' keys in 4 and 8 bits."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from memory.kv_cache.quantization import PackFormat, pack

SHAPE = 24, 2, 800, 64  # layers, kv_heads, tokens, head_dim; as in Qwen2.5-0.5B
BITS = pytest.mark.parametrize("bits", [4, 8])


def numbers() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()


@BITS
def test_pack(benchmark: BenchmarkFixture, note: Note, bits: int) -> None:
    """Floor (see `conftest`): the numbers are read once and the codes are written once."""
    x = numbers()
    packed = benchmark(pack, x, PackFormat(bits))
    assert packed.shape == SHAPE
    note(copied=x.nbytes + packed.nbytes, tokens=SHAPE[2], bits=bits)


@BITS
def test_unpack(benchmark: BenchmarkFixture, note: Note, bits: int) -> None:
    """Floor (see `conftest`): the codes are read once and the numbers are written once."""
    packed = pack(numbers(), PackFormat(bits))
    x = benchmark(packed.unpack, torch.bfloat16)
    assert x.shape == SHAPE
    note(copied=x.nbytes + packed.nbytes, tokens=SHAPE[2], bits=bits)
