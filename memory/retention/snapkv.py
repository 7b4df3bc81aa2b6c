"""Rows that the last window of queries attends to survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from keep_agent.errors import ConfigError, check_choice
from memory.kv_cache.cache_view import CacheView, attention_weights, check_budget, keep_best
from memory.stages import Capabilities

POOLINGS = ("max", "mean")


@dataclass(frozen=True)
class SnapKV:
    """SnapKV (arXiv 2404.14469): attention of the last ``window`` rows, pooled over neighbours, votes for history.

    The paper pools by maximum over 7 rows; its published code by mean over 5. It keeps rows per layer and KV head; here
    a row survives in all layers or none, so the votes of all query heads and layers are added up. They are the
    attention that the model pays, with its sliding windows, softcap and sinks: what a sink takes votes for nobody.
    """

    budget: int = 256
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    grain: str = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, evicts=True)
    counts_mass: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_budget(self.budget, self.grain)
        if self.window < 1:
            raise ConfigError(f"window={self.window} rows ask nothing: use 1 or more")
        if self.kernel < 1 or not self.kernel % 2:
            raise ConfigError(f"kernel={self.kernel} has no middle: use an odd number of rows")
        check_choice("pooling", self.pooling, POOLINGS)

    def open(self, weights_key: str, head_dim: int) -> None:
        """Rows of any model will do."""

    def keep(self, view: CacheView) -> torch.Tensor:
        return keep_best(view, self.budget, lambda: self._scores(view), self.grain)

    def _scores(self, view: CacheView) -> torch.Tensor:
        """Votes of the history; the window itself survives."""
        votes = sum(self.votes(view, layer).sum(0) for layer in range(view.layers))
        window = votes.new_full((view.rows - votes.numel(),), float("inf"))
        return torch.cat([votes, window])[view.history]

    def votes(self, view: CacheView, layer: int) -> torch.Tensor:
        """(heads, rows before the window): mean attention of the window's queries, pooled."""
        queries, asked = view.queries(layer)[:, -self.window :].float(), view.asked[-self.window :]
        before = int(torch.searchsorted(view.positions, asked[0]))
        weights = attention_weights(view, layer, queries, asked)
        votes = weights[:, :, :before].mean(1)
        return self._pool(votes) if before else votes

    def _pool(self, votes: torch.Tensor) -> torch.Tensor:
        half = self.kernel // 2
        if self.pooling == "max":
            return functional.max_pool1d(votes, self.kernel, 1, half)
        return functional.avg_pool1d(votes, self.kernel, 1, half)
