"""The first rows and the last ones survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView, check_budget, keep_best
from memory.stages import Capabilities


@dataclass(frozen=True)
class Streaming:
    """StreamingLLM (arXiv 2309.17453): ``sinks`` first rows of the history and the most recent ones.

    Survivors keep their positions; `memory.construction.turns.Turns` with ``survivors=move`` numbers them anew.
    """

    budget: int = 256
    sinks: int = 4
    grain: str = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, evicts=True)
    window: ClassVar[int] = 0
    counts_mass: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_budget(self.budget, self.grain)
        if self.sinks < 0:
            raise ConfigError(f"sinks={self.sinks} is negative: use 0 or more rows")

    def open(self, weights_key: str, head_dim: int) -> None:
        """Rows of any model will do."""

    def keep(self, view: CacheView) -> torch.Tensor:
        return keep_best(view, self.budget, lambda: self._scores(view.positions[view.history]), self.grain)

    def _scores(self, places: torch.Tensor) -> torch.Tensor:
        recency = places.double()
        recency[: self.sinks] = float("inf")
        return recency
