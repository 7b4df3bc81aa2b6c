"""Costs of a model's layers: weights, floating-point operations and bytes per row, and their times on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.loading.machines import Device
from eval.loading.workload import AFTER, BEFORE, PieceTimes
from keep_agent.errors import ConfigError
from keep_agent.files import read_json
from memory.engine.models.model_shapes import SHAPES

if TYPE_CHECKING:
    import torch

    from memory.engine.base import Engine


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a decoder; ``width`` is that of the MLP, or the summed width of the experts that a row uses."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int = 0
    router: int = 0  # number of routed experts; 0: a dense MLP
    itemsize: int = 2  # bytes per weight, and per element of keys and values
    windows: tuple[int | None, ...] = ()  # sliding window per layer in tokens; None: no window
    parameter_bytes: int | None = None  # bytes of all weights; None: ``itemsize`` per weight

    @classmethod
    def of(cls, engine: Engine) -> Shape:
        """Read the shape of a loaded model."""
        info = engine.info
        sizes = info.layers, info.hidden, info.heads, info.kv_heads, info.head_dim, info.mlp_width, info.vocab
        return cls(*sizes, info.experts, info.dtype.itemsize, info.windows, info.parameter_bytes)

    @classmethod
    def from_name(cls, name: str) -> Shape:
        """Return a shape of `model_shapes`, or of a dense decoder's config.json, in bfloat16. Raises ConfigError."""
        if name in SHAPES:
            return cls._dense(SHAPES[name])
        file = Path(name)
        if not file.is_file():
            raise ConfigError(f"model {name!r} is neither a file nor one of {', '.join(SHAPES)}")
        config = read_json(file, "name a config.json of a dense decoder")
        try:
            return cls._dense(config)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file} is not the config.json of a dense decoder ({error})") from error

    @classmethod
    def _dense(cls, config: Mapping[str, Any]) -> Shape:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
        return cls(config["num_hidden_layers"], hidden, heads, kv_heads, head_dim, config["intermediate_size"])

    def first_layers(self, layers: int) -> Shape:
        """Return the shape of the model cut after its first ``layers`` layers."""
        if not 2 <= layers <= self.layers:
            raise ConfigError(f"--layers {layers} of a model with {self.layers} layers; use 2 to {self.layers}")
        return replace(self, layers=layers, windows=self.windows[:layers])

    @property
    def query_weights(self) -> int:
        """Weights of a layer's query projection; the output projection has as many."""
        return self.hidden * self.heads * self.head_dim

    @property
    def value_weights(self) -> int:
        """Weights of a layer's value projection; the key projection has as many."""
        return self.hidden * self.kv_heads * self.head_dim

    @property
    def mlp_weights(self) -> int:
        """Weights of a layer's MLP that one row uses."""
        return self.hidden * (3 * self.width + self.router)

    @property
    def value_ops(self) -> int:
        """Operations that compute a row's values; its keys need as many."""
        return 2 * self.value_weights

    @property
    def other_ops(self) -> int:
        """Operations of a row's other matrix products in a layer: queries, output, MLP."""
        return 4 * self.query_weights + 2 * self.mlp_weights

    @property
    def pair_ops(self) -> int:
        """Operations for one pair of query row and key row: its score, and the weighted value."""
        return 4 * self.heads * self.head_dim

    @property
    def head_ops(self) -> int:
        """Operations of one row's logits."""
        return 2 * self.hidden * self.vocab

    @property
    def row_bytes(self) -> int:
        """Bytes of keys and values of one row at one layer."""
        return 2 * self.kv_heads * self.head_dim * self.itemsize

    @property
    def head_bytes(self) -> int:
        nbytes = self.hidden * self.vocab * self.itemsize
        return nbytes if self.parameter_bytes is None else min(nbytes, self.parameter_bytes)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the weights of one layer that a row uses."""
        nbytes = (2 * self.value_weights + 2 * self.query_weights + self.mlp_weights) * self.itemsize
        if self.parameter_bytes is None:
            return nbytes
        return min(nbytes, (self.parameter_bytes - self.head_bytes) // self.layers)  # quantised weights are smaller


@dataclass(frozen=True)
class Roofline:
    """Roofline: each part of a layer takes max(FLOPs / rate, bytes / bandwidth) / ``attainable``, a share of the peaks.

    Bytes are the weights (``weight_bits`` each), and the keys and values read and the input and output rows, in the
    shape's dtype. Norms, RoPE and kernel launches are ignored, so times are too short for few rows. The last
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

    def times(self, active: Sequence[torch.Tensor], rows: int, choice_point: str) -> PieceTimes:
        """Return the seconds per layer of a prompt of ``rows`` rows, given the row numbers active at each layer."""
        stay = active[1:] if choice_point == BEFORE else active[:-1]
        choose = self._deviation if choice_point == AFTER else self._importance
        choices = [choose(a, rows) if b.numel() < a.numel() else 0.0 for a, b in pairwise(active)]
        query_rows = [*active[:-1], active[-1][-1:]]
        return PieceTimes(
            tuple(self._attention(r, q, rows) for r, q in zip(active, query_rows, strict=True)),
            (*choices, 0.0),
            (*(self._mlp(r.numel()) for r in stay), self._mlp(1)),
        )

    def _attention(self, active: torch.Tensor, query_rows: torch.Tensor, rows: int) -> float:
        """Return the time of keys and values of ``active`` rows, and of everything else for ``query_rows``."""
        s, count = self.shape, query_rows.numel()
        flops = 4 * (count * s.query_weights + active.numel() * s.value_weights) + self._pairs(query_rows) * s.pair_ops
        nbytes = rows * s.row_bytes + (active.numel() + count) * self._row
        return self._seconds(flops, 2 * (s.query_weights + s.value_weights), nbytes)

    def _importance(self, active: torch.Tensor, rows: int) -> float:
        """Return the time of one pass of the active rows' queries over all keys (KEEP)."""
        s = self.shape
        queries = active.numel() * s.heads * s.head_dim * s.itemsize
        return self._seconds(self._pairs(active) * s.pair_ops // 2, 0, rows * s.row_bytes // 2 + queries)

    def _deviation(self, active: torch.Tensor, rows: int) -> float:
        """Return the time of comparing the next layer's values of active rows with their blocks (CacheBlend)."""
        s, count = self.shape, active.numel()
        return self._seconds(count * s.value_ops, s.value_weights, count * (self._row + s.row_bytes))

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
        """Count pairs of a query row and a row that it sees (itself and all earlier rows)."""
        return int((active + 1).sum())
