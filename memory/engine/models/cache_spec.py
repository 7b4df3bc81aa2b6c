"""Cache size of a model: bytes per token, and the tokens and agents that fit into a budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.engine.models.model_spec import ModelSpec
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantization import bytes_per_token as packed_bytes

SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class ModelCacheSpec:
    """The shape of any architecture's cache (Semantic): uniform GQA, hybrid sliding windows, attention sinks.

    A sliding layer attends to the last ``window`` tokens only, so a cache that is only ever extended could leave out
    all rows before them there (`bytes_spared`). They stay: a stored block is placed behind other text, a prompt is cut
    back to where the next one differs, and then earlier rows come into sight again. Sinks are logits, not rows.
    """

    layers: int
    kv_heads: int
    head_dim: int
    layer_types: tuple[str, ...]  # one per layer: full_attention | sliding_attention
    window: int | None  # of the sliding layers, in tokens
    dtype: torch.dtype
    sinks: bool

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> ModelCacheSpec:
        return cls(spec.layers, spec.kv_heads, spec.head_dim, spec.layer_types, spec.window, spec.dtype, spec.sinks)

    def bytes_per_token(self, format: PackFormat | None = None) -> int:
        """Bytes of one token's keys and values over all layers; packed in ``format``, else in the model's dtype.

        Keys packed by channel count with their share of a whole group of tokens.
        """
        return self.layers * self._layer_bytes(format)

    def tokens_in(self, budget_bytes: int, format: PackFormat | None = None) -> int:
        """Count the tokens that fit. Raises ConfigError for a negative budget."""
        if budget_bytes < 0:
            raise ConfigError(f"budget_bytes={budget_bytes} is negative: use 0 or more")
        return budget_bytes // self.bytes_per_token(format)

    def agents_in(self, budget_bytes: int, tokens: int, format: PackFormat | None = None) -> int:
        """Count the agents that fit with a memory of ``tokens`` each. Raises ConfigError for no tokens."""
        if tokens < 1:
            raise ConfigError(f"tokens={tokens} is no agent's memory: use 1 or more")
        return self.tokens_in(budget_bytes, format) // tokens

    def bytes_spared(self, tokens: int, format: PackFormat | None = None) -> int:
        """Bytes that a cache of ``tokens`` could leave out if it were only ever extended."""
        beyond = max(tokens - (self.window or tokens), 0)
        return beyond * self.layer_types.count(SLIDING) * self._layer_bytes(format)

    def _layer_bytes(self, format: PackFormat | None) -> int:
        if format is None:
            return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize
        return packed_bytes(self.kv_heads, self.head_dim, format)
