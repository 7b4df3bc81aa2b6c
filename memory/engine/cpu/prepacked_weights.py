"""Weights laid out for the products of a CPU once; otherwise oneDNN does it again for every product.

The products are the same ones: results are equal bit by bit. A prefill of few rows takes some 4 % less.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from memory.engine.cpu import half_precision_matmul as products

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
        return products.linear(self._product, x)

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
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and products.onednn_multiplies(weight.dtype)
