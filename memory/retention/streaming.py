"""StreamingLLM: the first rows and the last rows survive."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView
from memory.retention.base import BudgetedRetention


@dataclass(frozen=True)
class Streaming(BudgetedRetention):
    """StreamingLLM (arXiv 2309.17453): the first ``sinks`` rows that may be evicted, and the latest rows, survive.

    Survivors keep their positions; `memory.construction.turns.Turns` with ``survivors=move`` renumbers them.
    """

    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sinks < 0:
            raise ConfigError(f"sinks={self.sinks} is negative: use 0 or more rows")

    def _scores(self, view: CacheView) -> torch.Tensor:
        recency = view.positions[view.history].double()
        recency[: self.sinks] = float("inf")
        return recency
