"""Keep-all retention: no row is dropped between turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from memory.kv_cache.cache_view import CacheView
from memory.stages import Capabilities


@dataclass(frozen=True)
class KeepAll:
    """Policy that keeps all rows, without a budget."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    budget: ClassVar[int | None] = None
    window: ClassVar[int] = 0
    counts_mass: ClassVar[bool] = False

    def open(self, weights_key: str, head_dim: int) -> None:
        """Accept any model."""

    def keep(self, view: CacheView) -> torch.Tensor:
        return torch.ones(view.rows, dtype=torch.bool, device=view.positions.device)
