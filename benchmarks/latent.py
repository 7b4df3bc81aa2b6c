"""What it costs to choose among stored blocks, and that the choice does not look at their keys.

    python -m benchmarks.latent [tokens in memory ...]

On the shape of qwen2.5-0.5b (24 layers, 14 heads, 2 KV heads, 64 dimensions), blocks of 16 tokens, 32 query tokens,
float32, one thread; medians in milliseconds over all 24 layers. ``scan`` multiplies the queries with every key, which
is the least that an exact choice would have to do; ``boxes`` bounds the same products by two vectors per block;
``softmax`` and ``rank`` are whole choices of 128 blocks, ``one layer`` a choice that asks a single layer; ``append``
adds the boxes of 32 tokens. When a choice is timed the keys are no longer in memory: nobody could look at them. They
are random, so only the times mean anything.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.retrieval.latent import Latent

LAYERS, HEADS, KV_HEADS, DIM = 24, 14, 2, 64
BLOCK, QUERY, REPEATS = 16, 32, 5
TOKENS = (1_600, 6_400, 25_600, 100_000)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])


def scan(keys: torch.Tensor, query: torch.Tensor) -> None:
    """Every query with every key of its KV head; ``keys`` (layers, kv_heads, tokens, head_dim)."""
    for layer in range(LAYERS):
        query[layer].reshape(KV_HEADS, -1, DIM) @ keys[layer].mT


def remember(tokens: int, query: torch.Tensor) -> tuple[KeyBoxIndex, KeyBoxIndex, float]:
    """Boxes of all layers, boxes of one, and the time of a scan. The keys are gone when this returns."""
    keys = torch.randn(LAYERS, KV_HEADS, tokens, DIM, generator=torch.Generator().manual_seed(0))
    index, one = KeyBoxIndex(range(LAYERS), KV_HEADS, DIM), KeyBoxIndex([LAYERS // 2], KV_HEADS, DIM)
    for part in keys.split(256 * BLOCK, 2):
        for grown in (index, one):
            grown.append(KeyBoxes.around(part.split(BLOCK, 2), grown.layers))
    return index, one, milliseconds(lambda: scan(keys, query))


def measure(tokens: int) -> list[float]:
    """Mebibytes of the keys that were and of their boxes, then the times in the order of the table."""
    query = torch.randn(LAYERS, HEADS, QUERY, DIM, generator=torch.Generator().manual_seed(1))
    index, one, scanned = remember(tokens, query)
    new = torch.randn(LAYERS, KV_HEADS, 2 * BLOCK, DIM).split(BLOCK, 2)
    each = 4 * LAYERS * KV_HEADS * DIM / 2**20
    return [
        each * tokens,
        each * 2 * len(index),
        scanned,
        milliseconds(lambda: [index.bound(layer, query[layer]) for layer in range(LAYERS)]),
        milliseconds(lambda: Latent().choose(query, index)),
        milliseconds(lambda: Latent(normalise="rank").choose(query, index), 1),
        milliseconds(lambda: Latent(layers=[LAYERS // 2]).choose(query[:1], one)),
        milliseconds(lambda: index.append(KeyBoxes.around(new, index.layers)), 20),
    ]


def main(sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    heads = ("tokens", "blocks", "keys MB", "boxes MB", "scan", "boxes", "softmax", "rank", "one layer", "append")
    print("".join(f"{head:>10}" for head in heads))
    for tokens in sizes:
        cells = "".join(f"{value:>10.1f}" for value in measure(tokens))
        print(f"{tokens:>10}{tokens // BLOCK:>10}{cells}", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or TOKENS)
