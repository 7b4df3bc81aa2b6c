"""Choice of the training precision by measurement: not every CPU multiplies faster in bfloat16 than in float32."""

from __future__ import annotations

import time
from functools import cache

import torch

from memory.engine.cpu.half_precision_matmul import onednn_multiplies

ROWS, WIDTH, ROUNDS = 2048, 192, 5


@cache
def faster_precision(device: str) -> torch.dtype:
    """Return bfloat16 on accelerators; on a CPU with bfloat16 instructions, time products of a layer's size."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    if not onednn_multiplies(torch.bfloat16):
        return torch.float32
    return min((torch.bfloat16, torch.float32), key=_seconds)


def _seconds(dtype: torch.dtype) -> float:
    """Return the best time of a few rounds, without the first, which prepares kernels."""
    x, w = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(WIDTH, 2 * WIDTH, dtype=dtype)
    times = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        for _ in range(4):
            x @ w
        times.append(time.perf_counter() - start)
    return min(times[1:])
