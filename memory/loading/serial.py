"""Serial loading: a layer's stored keys and values are loaded just before the layer is computed, without overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from memory.prompt.layout import Layout, Transfer
from memory.stages import Capabilities

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Serial:
    """Loading order of KEEP's figure 8 (a): load layer l, compute layer l."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = False

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        inactive = np.ones(layout.rows, bool)
        inactive[active.cpu().numpy()] = False
        return layout.transfers(inactive, layer, layer + 1)
