"""Weights laid out for the products of a CPU once; otherwise oneDNN does it again for every product.

The products are the same ones: results are equal bit by bit. A prefill of few rows takes some 4 % less.
"""

from __future__ import annotations

import torch
from torch import nn

BATCH = 256  # rows of a product that the layout is made for; it serves any number


class Prepacked(nn.Module):
    """A linear layer in bfloat16 whose weight nobody else reads. It is no parameter: no optimiser can see it."""

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
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self.bias, "none", [], "")

    def linear(self) -> nn.Linear:
        """The layer as it was, with a copy of its weight."""
        weight = self.weight
        whole = nn.Linear(weight.shape[1], weight.shape[0], self.bias is not None, "meta", weight.dtype)
        whole.weight, whole.bias = nn.Parameter(weight, requires_grad=False), self.bias
        return whole


def prepack(layers: nn.Module) -> None:
    """Replace the linear layers of ``layers`` where the machine has products for them; quantised ones stay."""
    for parent, name, child in _children(layers, nn.Linear):
        if _can_be(child):
            setattr(parent, name, Prepacked(child))


def unpack(module: nn.Module) -> None:
    """Give ``module`` linear layers of its own instead of `Prepacked` ones."""
    for parent, name, child in _children(module, Prepacked):
        setattr(parent, name, child.linear())


def packed_tensors(module: nn.Module) -> list[torch.Tensor]:
    """What `copy.deepcopy` cannot copy."""
    return [child._packed for _, _, child in _children(module, Prepacked)]


def _children(module: nn.Module, kind: type[nn.Module]) -> list[tuple[nn.Module, str, nn.Module]]:
    """Submodules of exactly this ``kind``: their parents, their names there, themselves."""
    return [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is kind
    ]


def _can_be(linear: nn.Linear) -> bool:
    weight = linear.weight
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
