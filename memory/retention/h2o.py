"""H2O: the last rows survive, and the rows that received the most attention so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView
from memory.retention.base import BudgetedRetention


@dataclass(frozen=True)
class H2O(BudgetedRetention):
    """Heavy-Hitter Oracle (arXiv 2306.14048): rows with the most attention from all queries so far, and the last rows.

    The paper keeps rows per layer and head. Here a row survives in all layers or none, so its attention is summed over
    layers, heads and all queries. The last rows get the share ``recent`` of the budget that forced rows leave.
    """

    recent: float = 0.5
    counts_mass: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.recent <= 1:
            raise ConfigError(f"recent={self.recent} is not a share: use 0 to 1")

    def _scores(self, view: CacheView) -> torch.Tensor:
        scores = view.mass[view.history]
        last = round(self.recent * max(0, self.budget - int(view.forced.sum())))
        return torch.cat([scores[: scores.numel() - last], torch.full_like(scores[:last], float("inf"))])
