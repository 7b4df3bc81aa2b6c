"""Nothing is forgotten between turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from memory.stages import Capabilities


class HasLength(Protocol):
    length: int


@dataclass(frozen=True)
class KeepAll:
    """All rows survive, whatever the budget."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def keep(self, cache_view: HasLength, queries: torch.Tensor | None, budget: int | None) -> torch.Tensor:
        return torch.ones(cache_view.length, dtype=torch.bool)
