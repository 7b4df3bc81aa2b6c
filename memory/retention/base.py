"""Budgeted retention: base of the policies that keep a fixed number of rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.stages import Capabilities


@dataclass(frozen=True)
class BudgetedRetention:
    """Policy that keeps ``budget`` rows of a session: forced rows, and the rows of the history with the best scores.

    Forced rows (protected prefix, last instruction, last query) are never dropped. All other rows are the history.
    ``grain="segment"`` keeps a segment or turn as a whole or not at all, by the mean score of its rows.
    """

    budget: int = 256
    _: KW_ONLY
    grain: str = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, evicts=True)
    window: ClassVar[int] = 0
    counts_mass: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ConfigError(f"retention budget={self.budget} tokens keeps nothing: use 1 or more")
        check_choice("retention grain", self.grain, ("token", "segment"))

    def open(self, weights_key: str, head_dim: int) -> None:
        """Accept any model."""

    def keep(self, view: CacheView) -> torch.Tensor:
        return keep_best(view, self.budget, lambda: self._scores(view), self.grain)

    def _scores(self, view: CacheView) -> torch.Tensor:
        """Return (history rows,) scores; called only if the budget is too small for all rows."""
        raise NotImplementedError
