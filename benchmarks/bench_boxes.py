"""Boxes around keys: made, held against queries, and chosen among. Eight layers of the shape of Qwen2.5-0.5B."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Note
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.retrieval.latent import Latent

LAYERS, HEADS, KV_HEADS, DIM = 8, 14, 2, 64
BLOCK, QUERY = 16, 32  # tokens
BLOCKS = [1_000, 10_000]


def keys(blocks: int) -> list[torch.Tensor]:
    """Of each block (layers, kv_heads, tokens, head_dim)."""
    generator = torch.Generator().manual_seed(blocks)
    return list(torch.randn(LAYERS, KV_HEADS, blocks * BLOCK, DIM, generator=generator).split(BLOCK, 2))


@cache
def index_of(blocks: int) -> KeyBoxIndex:
    index = KeyBoxIndex(range(LAYERS), KV_HEADS, DIM)
    for _ in range(0, blocks, 1_000):
        index.append(KeyBoxes.around(keys(1_000), index.layers))
    return index


def queries() -> torch.Tensor:
    """(layers, heads, tokens, head_dim)"""
    return torch.randn(LAYERS, HEADS, QUERY, DIM, generator=torch.Generator().manual_seed(0))


def work(blocks: int, layers: int) -> dict[str, int]:
    """Both corners of every box are read once, for a product with every query head's tokens."""
    corners = 2 * layers * blocks * DIM
    return {"flops": 2 * corners * HEADS * QUERY, "moved": 4 * corners * KV_HEADS, "blocks": blocks, "layers": layers}


def test_making_boxes(benchmark: BenchmarkFixture, note: Note) -> None:
    """Floor: the keys are read once."""
    made, layers = keys(1_000), range(LAYERS)
    boxes = benchmark(KeyBoxes.around, made, layers)
    assert boxes.low.shape == (LAYERS, KV_HEADS, len(made), DIM)
    note(moved=sum(k.nbytes for k in made), blocks=len(made), layers=LAYERS)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_bounds_of_a_layer(benchmark: BenchmarkFixture, note: Note, blocks: int) -> None:
    bound = benchmark(index_of(blocks).bound, 0, queries()[0])
    assert bound.shape == (HEADS, QUERY, blocks)
    note(**work(blocks, 1))


@pytest.mark.parametrize(("normalise", "blocks"), [("softmax", 1_000), ("softmax", 10_000), ("rank", 1_000)])
def test_choice_among_blocks(benchmark: BenchmarkFixture, note: Note, normalise: str, blocks: int) -> None:
    stage = Latent(normalise=normalise)
    chosen = benchmark(stage.choose, queries(), index_of(blocks))
    assert len(chosen) == stage.top_k
    note(**work(blocks, LAYERS), normalise=normalise)
