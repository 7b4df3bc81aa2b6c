"""Load the next layer's slices while this layer is computed."""

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
    """KEEP's figure 8 (b): during layer l the slices of layer l + 1 of every row that is not active at l.

    A row that stops being active at l + 1 was not foreseen; its slice is loaded when the layer is due.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = True
    _loaded: NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        resting = np.ones(layout.rows, bool)
        resting[active.cpu().numpy()] = False
        if layer == 0:
            self._loaded = np.zeros(layout.rows, bool)
        runs = layout.runs(resting & ~self._loaded, self._loaded)
        transfers = [Transfer(place, layer, layer + 1, rows) for place, rows in runs]
        if layer + 1 < layers:
            runs = layout.runs(resting)
            transfers += [Transfer(place, layer + 1, layer + 2, rows) for place, rows in runs]
            self._loaded = layout.covered(runs)
        return transfers
