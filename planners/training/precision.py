"""In which precision this machine multiplies matrices of a small model faster: not every CPU is quick in bfloat16."""

from __future__ import annotations

import time
from functools import cache

import torch

from memory.engine.cpu.half_precision_matmul import onednn_multiplies

ROWS, WIDTH, ROUNDS = 2048, 192, 5


@cache
def faster_precision(device: str) -> torch.dtype:
    """bfloat16 on accelerators; on a CPU with instructions for it what a few products of a layer's size say."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    if not onednn_multiplies(torch.bfloat16):
        return torch.float32
    return min((torch.bfloat16, torch.float32), key=_seconds)


def _seconds(dtype: torch.dtype) -> float:
    """The best of a few rounds; the first one, which prepares kernels, is left out."""
    x, w = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(WIDTH, 2 * WIDTH, dtype=dtype)
    taken = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        for _ in range(4):
            x @ w
        taken.append(time.perf_counter() - began)
    return min(taken[1:])
