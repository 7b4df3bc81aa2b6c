"""How long a layer's three pieces take on a device: a roofline over FLOPs and bytes, from the model's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from eval.loading.layer_costs import Shape
from eval.loading.machines import Device
from eval.loading.workload import AFTER, BEFORE, Times
from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Roofline:
    """A piece takes max(FLOPs / rate, bytes / bandwidth) of the share of both that is ``attainable``.

    Bytes are the weights (``weight_bits`` each; computing stays in the shape's dtype), the keys and values read, and
    the rows that go in and out. Norms, RoPE and the launching of kernels are left out: times are on the short side
    where rows are few. The last layer computes keys and values of its active rows, and all else of the last one alone.
    """

    shape: Shape
    device: Device
    attainable: float = 0.6
    weight_bits: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.attainable <= 1:
            raise ConfigError(f"an attainable share of {self.attainable:g}; use more than 0, up to 1")
        if self.weight_bits not in (4, 8, 16):
            raise ConfigError(f"weights of {self.weight_bits} bits; use 4, 8 or 16")

    def times(self, active: Sequence[torch.Tensor], rows: int, narrow: str) -> Times:
        """Seconds per layer of a prompt of ``rows`` rows, from the row numbers active at each layer."""
        stay = active[1:] if narrow == BEFORE else active[:-1]
        choose = self._deviation if narrow == AFTER else self._importance
        choices = [choose(a, rows) if b.numel() < a.numel() else 0.0 for a, b in pairwise(active)]
        asking = [*active[:-1], active[-1][-1:]]
        return Times(
            tuple(self._attention(one, asks, rows) for one, asks in zip(active, asking, strict=True)),
            (*choices, 0.0),
            (*(self._mlp(one.numel()) for one in stay), self._mlp(1)),
        )

    def _attention(self, active: torch.Tensor, asking: torch.Tensor, rows: int) -> float:
        """Keys and values of the ``active`` rows; queries, attention and projection of the ``asking`` ones."""
        s, count = self.shape, asking.numel()
        flops = 4 * (count * s.query_weights + active.numel() * s.value_weights) + self._pairs(asking) * s.pair
        moved = rows * s.row_bytes + (active.numel() + count) * self._row
        return self._seconds(flops, 2 * (s.query_weights + s.value_weights), moved)

    def _importance(self, active: torch.Tensor, rows: int) -> float:
        """One pass of the active rows' queries over all keys (KEEP)."""
        s = self.shape
        queries = active.numel() * s.heads * s.head_dim * s.itemsize
        return self._seconds(self._pairs(active) * s.pair // 2, 0, rows * s.row_bytes // 2 + queries)

    def _deviation(self, active: torch.Tensor, rows: int) -> float:
        """The next layer's values of the active rows, beside those of their blocks (CacheBlend)."""
        s, count = self.shape, active.numel()
        return self._seconds(count * s.value, s.value_weights, count * (self._row + s.row_bytes))

    def _mlp(self, count: int) -> float:
        weights = self.shape.mlp_weights
        return self._seconds(2 * count * weights, weights, 2 * count * self._row)

    @property
    def _row(self) -> int:
        """Bytes of a row's hidden state."""
        return self.shape.hidden * self.shape.itemsize

    def _seconds(self, flops: float, weights: int, nbytes: int) -> float:
        moved = weights * self.weight_bits / 8 + nbytes
        return max(flops / self.device.flops, moved / self.device.memory) / self.attainable

    @staticmethod
    def _pairs(active: torch.Tensor) -> int:
        """Query rows times the rows they see: themselves and all before."""
        return int((active + 1).sum())
