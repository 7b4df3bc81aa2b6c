"""SnapKV: the rows that the last queries attend to most survive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from keep_agent.errors import ConfigError, check_choice
from memory.kv_cache.cache_view import CacheView, attention_weights
from memory.retention.base import BudgetedRetention


@dataclass(frozen=True)
class SnapKV(BudgetedRetention):
    """SnapKV (arXiv 2404.14469): a row's score is the attention of the last ``window`` rows, pooled over neighbours.

    The paper pools by maximum over 7 rows, its published code by mean over 5. SnapKV keeps rows per layer and KV head;
    here a row survives in all layers or none, so scores are summed over query heads and layers. Attention is computed
    as in the model, with its sliding windows, softcap and sinks.
    """

    window: int = 32
    kernel: int = 7
    pooling: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ConfigError(f"window={self.window} rows have no queries: use 1 or more")
        if self.kernel < 1 or not self.kernel % 2:
            raise ConfigError(f"kernel={self.kernel} has no middle row: use an odd number of rows")
        check_choice("pooling", self.pooling, ("max", "mean"))

    def _scores(self, view: CacheView) -> torch.Tensor:
        """Sum `window_attention` over layers and heads for history rows; the window's rows get infinity and survive."""
        scores = sum(self.window_attention(view, layer).sum(0) for layer in range(view.layers))
        window = scores.new_full((view.rows - scores.numel(),), float("inf"))
        return torch.cat([scores, window])[view.history]

    def window_attention(self, view: CacheView, layer: int) -> torch.Tensor:
        """Compute (heads, rows before the window): mean attention from the window's rows, pooled over neighbours."""
        queries, places = view.queries(layer)[:, -self.window :].float(), view.query_positions[-self.window :]
        before = int(torch.searchsorted(view.positions, places[0]))
        scores = attention_weights(view, layer, queries, places)[:, :, :before].mean(1)
        if not before:
            return scores
        pool = functional.max_pool1d if self.pooling == "max" else functional.avg_pool1d
        return pool(scores, self.kernel, 1, self.kernel // 2)
