"""Full reuse: only rows without stored keys and values are computed, and blocks are used unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe


@dataclass(frozen=True)
class Nothing:
    """Full reuse (arXiv 2311.04934): stored keys are only rotated to their positions. Exact if all blocks are."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=False)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return layout.fresh.nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active
