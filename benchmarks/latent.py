"""Benchmark of latent retrieval: selection of stored KV blocks by their key boxes, without reading their keys.

    python -m benchmarks.latent [tokens in memory ...]

The shape is qwen2.5-0.5b's (24 layers, 14 heads, 2 KV heads, 64 dimensions), with blocks of 16 tokens, 32 query tokens,
float32 and one thread; times are medians in milliseconds over all 24 layers. ``scan`` multiplies the queries with every
key, the minimum work of an exact selection; ``boxes`` bounds these products by two vectors per block (least and
greatest keys). ``softmax`` and ``rank`` are complete selections of 128 blocks, ``one layer`` a selection by a single
layer; ``append`` adds the boxes of 32 tokens. The keys are deleted before a selection is timed. All values are random.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

import torch

from benchmarks.timing import timed
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.retrieval.latent import Latent

LAYERS, HEADS, KV_HEADS, DIM = 24, 14, 2, 64
BLOCK, QUERY, REPEATS = 16, 32, 5
TOKENS = (1_600, 6_400, 25_600, 100_000)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of ``repeats`` calls, after one call to warm up."""
    return statistics.median([timed(work) for _ in range(repeats + 1)][1:])


def scan(keys: torch.Tensor, query: torch.Tensor) -> None:
    """Multiply every query with every key of its KV head; ``keys`` (layers, kv_heads, tokens, head_dim)."""
    for layer in range(LAYERS):
        query[layer].reshape(KV_HEADS, -1, DIM) @ keys[layer].mT


def make_boxes(tokens: int, query: torch.Tensor) -> tuple[KeyBoxIndex, KeyBoxIndex, float]:
    """Return boxes of all layers, boxes of one layer, and the time of a scan. The keys are freed on return."""
    keys = torch.randn(LAYERS, KV_HEADS, tokens, DIM, generator=torch.Generator().manual_seed(0))
    indexes = KeyBoxIndex(range(LAYERS), KV_HEADS, DIM), KeyBoxIndex([LAYERS // 2], KV_HEADS, DIM)
    for part in keys.split(256 * BLOCK, 2):
        for index in indexes:
            index.append(KeyBoxes.around(part.split(BLOCK, 2), index.layers))
    return *indexes, milliseconds(lambda: scan(keys, query))


def measure(tokens: int) -> list[float]:
    """Return the mebibytes of the keys and of their boxes, then the times in the order of the table."""
    query = torch.randn(LAYERS, HEADS, QUERY, DIM, generator=torch.Generator().manual_seed(1))
    index, single, scan_ms = make_boxes(tokens, query)
    new = torch.randn(LAYERS, KV_HEADS, 2 * BLOCK, DIM).split(BLOCK, 2)
    vector = 4 * LAYERS * KV_HEADS * DIM / 2**20
    return [
        vector * tokens,
        vector * 2 * len(index),
        scan_ms,
        milliseconds(lambda: [index.bound(layer, query[layer]) for layer in range(LAYERS)]),
        milliseconds(lambda: Latent().choose(query, index)),
        milliseconds(lambda: Latent(normalise="rank").choose(query, index), 1),
        milliseconds(lambda: Latent(layers=[LAYERS // 2]).choose(query[:1], single)),
        milliseconds(lambda: index.append(KeyBoxes.around(new, index.layers)), 20),
    ]


def main(sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    heads = ("tokens", "blocks", "keys MiB", "boxes MiB", "scan", "boxes", "softmax", "rank", "one layer", "append")
    print("".join(f"{head:>10}" for head in heads))
    for tokens in sizes:
        cells = "".join(f"{value:>10.1f}" for value in measure(tokens))
        print(f"{tokens:>10}{tokens // BLOCK:>10}{cells}", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or TOKENS)
