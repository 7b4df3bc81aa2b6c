"""Matrix products of a CPU in half precision, padded to few shapes.

oneDNN makes a kernel for every new shape of a product. It keeps the last 1,024 of them and PyTorch as many, half a MiB
a shape together; and what they drop leaves holes in glibc's heap that later kernels do not fit into. So a process
whose products have ever new numbers of rows grows without end (docs/engine.md#memory-of-a-long-run). Padding changes
no result: a row of a product does not depend on the others, and zeros add nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

HALF = (torch.bfloat16, torch.float16)  # other products are not oneDNN's
ROWS, QUERIES, KEYS = 16, 32, 32  # multiples that rows of linear layers, queries, and keys and values are padded to
STEPS = 16  # so many multiples, then larger steps: an eighth at most is padding


def size(count: int, multiple: int) -> int:
    """The smallest allowed size from ``count`` on: 1, a quarter of ``multiple``, then multiples of it."""
    if count <= multiple // 4:
        return 1 if count <= 1 else multiple // 4
    while count > STEPS * multiple:
        multiple *= 2
    return -(-count // multiple) * multiple


def lacking(x: torch.Tensor, count: int, multiple: int) -> int:
    """Rows to add to ``count`` rows of ``x``; none where oneDNN does not multiply."""
    return size(count, multiple) - count if x.device.type == "cpu" and x.dtype in HALF else 0


def padded(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """``x`` (..., rows, numbers) with rows of zeros behind."""
    more = lacking(x, x.shape[-2], multiple)
    return functional.pad(x, (0, 0, 0, more)) if more else x


def linear(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``layer`` on the rows of ``x`` (..., in)."""
    rows = padded(x.flatten(0, -2), ROWS)
    return layer(rows)[: x.shape[:-1].numel()].unflatten(0, x.shape[:-1])


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(..., rows, keys) products of ``q`` (..., rows, head_dim) and ``k`` (..., keys, head_dim)."""
    return (padded(q, QUERIES) @ padded(k, KEYS).mT)[..., : q.shape[-2], : k.shape[-2]]


def mix(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(..., rows, head_dim): ``weights`` (..., rows, keys) times ``v`` (..., keys, head_dim)."""
    more = lacking(v, v.shape[-2], KEYS)
    wide = functional.pad(weights, (0, more)) if more else weights
    return (padded(wide, QUERIES) @ padded(v, KEYS))[..., : weights.shape[-2], :]
