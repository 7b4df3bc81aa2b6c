"""Matrix products of a CPU in half precision, padded to few shapes.

oneDNN makes a kernel for every new shape of a product. It keeps the last 1,024 of them and PyTorch as many, half a MiB
a shape together; and what they drop leaves holes in glibc's heap that later kernels do not fit into. So a process
whose products have ever new numbers of rows grows without end (docs/engine.md#memory-of-a-long-run). Padding changes
no result: a row of a product does not depend on the others, and zeros add nothing.

A processor without instructions for a type multiplies it in PyTorch's own way: nothing is kept by shape, nor padded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@cache
def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether products of ``dtype`` on this machine's CPU are oneDNN's."""
    if dtype not in (torch.bfloat16, torch.float16) or not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    return bool(ops._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else ops._is_mkldnn_fp16_supported())


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows that products have: 1, a quarter of ``multiple``, ``steps`` multiples, then larger steps."""

    multiple: int
    steps: int  # beyond the first multiples 2 / steps are padding at most

    def over(self, count: int) -> int:
        """The smallest from ``count`` on."""
        if count <= self.multiple // 4:
            return 1 if count <= 1 else self.multiple // 4
        step = self.multiple
        while count > self.steps * step:
            step *= 2
        return -(-count // step) * step

    def lacking(self, x: torch.Tensor, count: int) -> int:
        """Rows to add to ``count`` rows of ``x``; none where oneDNN does not multiply."""
        return self.over(count) - count if x.device.type == "cpu" and onednn_multiplies(x.dtype) else 0

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` (..., rows, numbers) with rows of zeros behind."""
        more = self.lacking(x, x.shape[-2])
        return functional.pad(x, (0, 0, 0, more)) if more else x


ROWS = Sizes(16, 16)  # of linear layers
QUERIES = Sizes(32, 16)
KEYS = Sizes(32, 8)  # with their values


def linear(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``layer`` on the rows of ``x`` (..., in)."""
    rows = ROWS.padded(x.flatten(0, -2))
    return layer(rows)[: x.shape[:-1].numel()].unflatten(0, x.shape[:-1])


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(..., rows, keys) products of ``q`` (..., rows, head_dim) and ``k`` (..., keys, head_dim)."""
    return (QUERIES.padded(q) @ KEYS.padded(k).mT)[..., : q.shape[-2], : k.shape[-2]]


def mix(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(..., rows, head_dim): ``weights`` (..., rows, keys) times ``v`` (..., keys, head_dim)."""
    more = KEYS.lacking(v, v.shape[-2])
    wide = functional.pad(weights, (0, more)) if more else weights
    return (QUERIES.padded(wide) @ KEYS.padded(v))[..., : weights.shape[-2], :]


BATCH = 256  # rows of a product that the layout is made for; it serves any number


class Prepacked(nn.Module):
    """A linear layer in bfloat16 for inference: its weight is no parameter. A deep copy is an `nn.Linear` again."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), BATCH)

    @property
    def weight(self) -> torch.Tensor:
        """(out, in), a copy in the usual layout."""
        return self._packed.to_dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        return linear(self._product, x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self.bias, "none", [], "")

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """The layer as it was, with a copy of its weight."""
        weight = self.weight
        whole = nn.Linear(weight.shape[1], weight.shape[0], self.bias is not None, "meta", weight.dtype)
        whole.weight, whole.bias = nn.Parameter(weight, requires_grad=False), copy.deepcopy(self.bias, memo)
        return whole


def prepack(layers: nn.Module) -> None:
    """Replace the linear layers of ``layers`` where the machine has products for them; quantised ones stay.

    One after the other: each gives its memory back before the next is laid out.
    """
    for parent in [module for module in layers.modules() if type(module) is not nn.Linear]:
        for name in [name for name, _ in parent.named_children()]:
            child = getattr(parent, name)
            if type(child) is nn.Linear and _can_be(child):
                setattr(parent, name, Prepacked(child))


def _can_be(linear: nn.Linear) -> bool:
    weight = linear.weight
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and onednn_multiplies(weight.dtype)
