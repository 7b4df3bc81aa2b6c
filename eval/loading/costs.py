"""Roofline model of a layer's three pieces: times from FLOPs and bytes of the model's shape."""

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
    """Roofline: a piece takes max(FLOPs / rate, bytes / bandwidth), divided by the ``attainable`` share of both.

    Bytes are the weights (``weight_bits`` each; computing uses the shape's dtype), the keys and values read, and the
    input and output rows. Norms, RoPE and kernel launches are left out, so times are too short for few rows. The last
    layer computes keys and values of its active rows, and everything else for the last row alone.
    """

    shape: Shape
    device: Device
    attainable: float = 0.6
    weight_bits: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.attainable <= 1:
            raise ConfigError(f"attainable share {self.attainable:g} does not work; use more than 0, up to 1")
        if self.weight_bits not in (4, 8, 16):
            raise ConfigError(f"weights of {self.weight_bits} bits are not supported; use 4, 8 or 16")

    def times(self, active: Sequence[torch.Tensor], rows: int, narrow: str) -> Times:
        """Return the seconds per layer of a prompt of ``rows`` rows, given the row numbers active at each layer."""
        stay = active[1:] if narrow == BEFORE else active[:-1]
        choose = self._deviation if narrow == AFTER else self._importance
        choices = [choose(a, rows) if b.numel() < a.numel() else 0.0 for a, b in pairwise(active)]
        query_rows = [*active[:-1], active[-1][-1:]]
        return Times(
            tuple(self._attention(r, q, rows) for r, q in zip(active, query_rows, strict=True)),
            (*choices, 0.0),
            (*(self._mlp(r.numel()) for r in stay), self._mlp(1)),
        )

    def _attention(self, active: torch.Tensor, query_rows: torch.Tensor, rows: int) -> float:
        """Return the time of keys and values of ``active`` rows, and of all else for ``query_rows``."""
        s, count = self.shape, query_rows.numel()
        flops = 4 * (count * s.query_weights + active.numel() * s.value_weights) + self._pairs(query_rows) * s.pair
        nbytes = rows * s.row_bytes + (active.numel() + count) * self._row
        return self._seconds(flops, 2 * (s.query_weights + s.value_weights), nbytes)

    def _importance(self, active: torch.Tensor, rows: int) -> float:
        """Return the time of one pass of the active rows' queries over all keys (KEEP)."""
        s = self.shape
        queries = active.numel() * s.heads * s.head_dim * s.itemsize
        return self._seconds(self._pairs(active) * s.pair // 2, 0, rows * s.row_bytes // 2 + queries)

    def _deviation(self, active: torch.Tensor, rows: int) -> float:
        """Return the time of comparing the next layer's values of active rows with their blocks (CacheBlend)."""
        s, count = self.shape, active.numel()
        return self._seconds(count * s.value, s.value_weights, count * (self._row + s.row_bytes))

    def _mlp(self, count: int) -> float:
        weights = self.shape.mlp_weights
        return self._seconds(2 * count * weights, weights, 2 * count * self._row)

    @property
    def _row(self) -> int:
        """Bytes of a row's hidden state."""
        return self.shape.hidden * self.shape.itemsize

    def _seconds(self, flops: float, weights: int, nbytes: float) -> float:
        nbytes += weights * self.weight_bits / 8
        return max(flops / self.device.flops, nbytes / self.device.memory) / self.attainable

    @staticmethod
    def _pairs(active: torch.Tensor) -> int:
        """Count pairs of query row and visible row: itself and all before."""
        return int((active + 1).sum())
