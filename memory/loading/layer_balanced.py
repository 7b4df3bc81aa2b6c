"""Load what can no longer become active for all layers to come, as early as the link has time."""

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
    """KEEP (arXiv 2602.23592, section 4.3): a row that is not active at a layer is never active again.

    So its slices of all later layers are asked for at once. The link moves the layer that is due first, so what is
    asked for early fills its idle time and never stands in the way.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = True
    _moved: NDArray[np.bool_] = field(init=False, repr=False, compare=False)  # rows there, or on their way

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        resting = np.ones(layout.rows, bool)
        resting[active.cpu().numpy()] = False
        if layer == 0:
            self._moved = np.zeros(layout.rows, bool)
        wanted = resting & ~self._moved
        if not wanted.any():  # most layers drop nothing
            return []
        runs = layout.runs(wanted, self._moved)
        self._moved |= layout.covered(runs)
        return [Transfer(place, layer, layers, rows) for place, rows in runs]
