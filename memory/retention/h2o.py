"""Rows that received most attention survive, and the last ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView, check_budget, keep_best
from memory.stages import Capabilities


@dataclass(frozen=True)
class H2O:
    """Heavy-Hitter Oracle (arXiv 2306.14048): attention added up over all queries so far, and a recent window.

    The paper keeps rows per layer and head; here a row survives in all layers or none, so its mass is summed over
    layers, heads and querying rows: those forgotten since too, but none that were taken back. ``recent``: share of what
    the budget leaves for history that the last rows get.
    """

    budget: int = 256
    recent: float = 0.5
    grain: str = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, evicts=True)
    window: ClassVar[int] = 0
    counts_mass: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_budget(self.budget, self.grain)
        if not 0 <= self.recent <= 1:
            raise ConfigError(f"recent={self.recent} is no share: use 0 to 1")

    def open(self, weights_key: str, head_dim: int) -> None:
        """Rows of any model will do."""

    def keep(self, view: CacheView) -> torch.Tensor:
        return keep_best(view, self.budget, lambda: self._scores(view), self.grain)

    def _scores(self, view: CacheView) -> torch.Tensor:
        scores = view.mass[view.history]
        last = round(self.recent * max(0, self.budget - int(view.forced.sum())))
        return torch.cat([scores[: scores.numel() - last], torch.full_like(scores[:last], float("inf"))])
