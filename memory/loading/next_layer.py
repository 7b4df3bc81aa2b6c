"""Next-layer loading: while a layer is computed, stored keys and values of the next layer are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from memory.prompt.layout import Layout, Transfer
from memory.stages import Capabilities

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


@dataclass
class NextLayer:
    """Loading order of KEEP's figure 8 (b): during layer l, load layer l + 1 of every row that is not computed at l.

    A row that is computed at layer l, but not at l + 1, is loaded just before layer l + 1.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = True
    _loaded: NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        inactive = np.ones(layout.rows, bool)
        inactive[active.cpu().numpy()] = False
        if layer == 0:
            self._loaded = np.zeros(layout.rows, bool)
        transfers = layout.transfers(inactive & ~self._loaded, layer, layer + 1, self._loaded)
        if layer + 1 < layers:
            self._loaded = np.zeros(layout.rows, bool)
            transfers += layout.transfers(inactive, layer + 1, layer + 2, self._loaded)
        return transfers
