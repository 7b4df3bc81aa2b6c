"""Layer-balanced loading: a stored row that is inactive at a layer is requested for all remaining layers at once."""

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
class LayerBalanced:
    """KEEP (arXiv 2602.23592, section 4.3): a row that is not computed (active) at a layer is never computed again.

    The engine transfers rows of the earliest layer first, so requests for later layers only use idle time.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = True
    _requests: NDArray[np.bool_] = field(init=False, repr=False, compare=False)  # (rows,) True: no request is due

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        if layer == 0:
            self._requests = layout.block_of < 0  # rows without a block have nothing to load
        inactive = ~self._requests
        inactive[active.cpu().numpy()] = False
        return layout.transfers(inactive, layer, layers, self._requests)
