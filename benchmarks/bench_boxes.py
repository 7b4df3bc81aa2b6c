"""Benchmark of key boxes (least and greatest keys of a KV block): construction, bounds, and selection of blocks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.retrieval.latent import Latent

LAYERS, HEADS, KV_HEADS, DIM = 8, 14, 2, 64  # eight layers of Qwen2.5-0.5B's shape
BLOCK, QUERY = 16, 32  # tokens
BLOCKS = [1_000, 10_000]


def keys(blocks: int) -> list[torch.Tensor]:
    """Return the keys of each block, (layers, kv_heads, tokens, head_dim)."""
    generator = torch.Generator().manual_seed(blocks)
    return list(torch.randn(LAYERS, KV_HEADS, blocks * BLOCK, DIM, generator=generator).split(BLOCK, 2))


@cache
def index_of(blocks: int) -> KeyBoxIndex:
    index = KeyBoxIndex(range(LAYERS), KV_HEADS, DIM)
    for _ in range(0, blocks, 1_000):
        index.append(KeyBoxes.around(keys(1_000), index.layers))
    return index


def queries() -> torch.Tensor:
    """Return query states (layers, heads, tokens, head_dim)."""
    return torch.randn(LAYERS, HEADS, QUERY, DIM, generator=torch.Generator().manual_seed(0))


def work(blocks: int, layers: int) -> dict[str, int]:
    """Return the minimum work: both corners of every box are read once and multiplied with all query states."""
    corners = 2 * layers * blocks * DIM
    return {"flops": 2 * corners * HEADS * QUERY, "copied": 4 * corners * KV_HEADS, "blocks": blocks, "layers": layers}


def test_construction_of_boxes(benchmark: BenchmarkFixture, note: Note) -> None:
    """Floor (see `conftest`): the keys are read once."""
    blocks, layers = keys(1_000), range(LAYERS)
    boxes = benchmark(KeyBoxes.around, blocks, layers)
    assert boxes.low.shape == (LAYERS, KV_HEADS, len(blocks), DIM)
    note(copied=sum(k.nbytes for k in blocks), blocks=len(blocks), layers=LAYERS)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_bounds_of_a_layer(benchmark: BenchmarkFixture, note: Note, blocks: int) -> None:
    bound = benchmark(index_of(blocks).bound, 0, queries()[0])
    assert bound.shape == (HEADS, QUERY, blocks)
    note(**work(blocks, 1))


@pytest.mark.parametrize(("normalise", "blocks"), [("softmax", 1_000), ("softmax", 10_000), ("rank", 1_000)])
def test_choice_among_blocks(benchmark: BenchmarkFixture, note: Note, normalise: str, blocks: int) -> None:
    stage = Latent(normalise=normalise)
    selection = benchmark(stage.choose, queries(), index_of(blocks))
    assert len(selection) == stage.top_k
    note(**work(blocks, LAYERS), normalise=normalise)
