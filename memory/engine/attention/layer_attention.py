"""Layer attention: inputs and lazy output of one layer's attention, and the hook that takes part in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from memory.engine.attention.kernels import AttentionParams, Block, Weights, grouped_attention


@dataclass(slots=True)
class LayerAttention:
    """Attention of one layer over one pass: its inputs, and its output once that is wanted.

    A tiled cache has no ``keys`` and ``values`` in one piece: the output is computed tile by tile, without weights.
    """

    layer: int
    query: torch.Tensor  # rotated, (requests, heads, active rows, head_dim)
    keys: torch.Tensor | None  # (requests, kv_heads, visible rows, head_dim)
    values: torch.Tensor | None
    params: AttentionParams
    blocks: Sequence[Block]
    tiles: Callable[[], torch.Tensor] | None = None  # computes the output of a tiled cache
    keeps_weights: bool = False  # whether `weights` may be kept: they are large
    _out: torch.Tensor | None = None
    _weights: list[torch.Tensor] = field(default_factory=list)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """Weights of all rows, one tensor per block, (requests * heads, rows, keys); none if they are not kept."""
        if self.keeps_weights:
            self.output()
        return self._weights

    def output(self, sink: Weights | None = None) -> torch.Tensor:
        """(requests, active rows, heads, head_dim); the weights go to ``sink``, if given, instead of `weights`."""
        if self._out is None:
            kept = self._weights if self.keeps_weights and sink is None else sink
            self._out = self._attend(self.query, self.blocks, kept) if self.tiles is None else self.tiles()
        return self._out

    def output_of(self, rows: torch.Tensor, blocks: Sequence[Block]) -> torch.Tensor:
        """The same shape, computed for the numbers ``rows`` alone, with their ``blocks``; other rows are finite."""
        if self._out is not None:
            return self._out
        out = self.query.new_zeros(self.query.transpose(1, 2).shape)
        out[:, rows] = self._attend(self.query[:, :, rows], blocks, None)
        return out

    def _attend(self, query: torch.Tensor, blocks: Sequence[Block], sink: Weights | None) -> torch.Tensor:
        params = self.params
        return grouped_attention(
            query, self.keys, self.values, blocks, params.scale, params.softcap, params.sinks, sink
        )


class AttentionHook(Protocol):
    """Takes part in the attention of a pass, layer by layer."""

    def before(self, layer: int, query: torch.Tensor) -> None:
        """See a layer's unrotated queries (1, heads, rows, head_dim) before its keys are read; bare passes only."""
        ...

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        """Return the layer's attention output (requests, active rows, heads, head_dim)."""
        ...
