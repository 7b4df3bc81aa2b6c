"""How long a layer's three pieces take on a device: a roofline over FLOPs and bytes, from the model's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from eval.overlap.machines import Device
from eval.overlap.work import AFTER, BEFORE, Times
from keep_agent.errors import ConfigError
from memory.engine.shapes import SHAPES

BYTES = 2  # of a bfloat16 number


@dataclass(frozen=True)
class Shape:
    """Dimensions of a dense decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int  # of the gated MLP

    @classmethod
    def named(cls, name: str) -> Shape:
        """A shape of `memory.engine.shapes`, or a ``config.json`` of a model. Raises ConfigError if it is neither."""
        if name in SHAPES:
            return cls.of(SHAPES[name])
        file = Path(name)
        if not file.is_file():
            raise ConfigError(f"model {name!r} is neither a file nor one of {', '.join(SHAPES)}")
        try:
            return cls.of(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{file} is no config.json of a dense decoder ({error})") from error

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return cls(
            config["num_hidden_layers"],
            hidden,
            heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or hidden // heads,
            config["intermediate_size"],
        )

    def cut(self, layers: int) -> Shape:
        """The same with the first ``layers`` only."""
        if not 2 <= layers <= self.layers:
            raise ConfigError(f"{layers} layers of {self.layers}; use 2 to {self.layers}")
        return replace(self, layers=layers)

    @property
    def row_bytes(self) -> int:
        """Keys and values of one row at one layer."""
        return 2 * self.kv_heads * self.head_dim * BYTES


@dataclass(frozen=True)
class Roofline:
    """A piece takes max(FLOPs / rate, bytes / bandwidth) of the share of both that is ``attainable``.

    Bytes are the weights (``weight_bits`` each; computing stays in bfloat16), the keys and values read, and the rows
    that go in and out. Norms, RoPE and the launching of kernels are left out: times are on the short side where rows
    are few. The last layer computes keys and values of its active rows, and all else of the last one alone.
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
        queries, keys = 2 * s.hidden * s.heads * s.head_dim, 2 * s.hidden * s.kv_heads * s.head_dim  # weights
        flops = 2 * (count * queries + active.numel() * keys) + 4 * self._pairs(asking) * s.heads * s.head_dim
        return self._seconds(flops, queries + keys, rows * s.row_bytes + (active.numel() + count) * s.hidden * BYTES)

    def _importance(self, active: torch.Tensor, rows: int) -> float:
        """One pass of the active rows' queries over all keys (KEEP)."""
        s = self.shape
        flops = 2 * self._pairs(active) * s.heads * s.head_dim
        return self._seconds(flops, 0, rows * s.row_bytes // 2 + active.numel() * s.heads * s.head_dim * BYTES)

    def _deviation(self, active: torch.Tensor, rows: int) -> float:
        """The next layer's values of the active rows, beside those of their blocks (CacheBlend)."""
        s, count = self.shape, active.numel()
        weights = s.hidden * s.kv_heads * s.head_dim
        return self._seconds(2 * count * weights, weights, count * (s.hidden * BYTES + s.row_bytes))

    def _mlp(self, count: int) -> float:
        weights = 3 * self.shape.hidden * self.shape.inner
        return self._seconds(2 * count * weights, weights, 2 * count * self.shape.hidden * BYTES)

    def _seconds(self, flops: float, weights: int, nbytes: int) -> float:
        moved = weights * self.weight_bits / 8 + nbytes
        return max(flops / self.device.flops, moved / self.device.memory) / self.attainable

    @staticmethod
    def _pairs(active: torch.Tensor) -> int:
        """Query rows times the rows they see: themselves and all before."""
        return int((active + 1).sum())
