"""First-token recomputation: EPIC's static choice of a few rows at the boundaries between units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe


@dataclass(frozen=True)
class FirstTokens:
    """EPIC's LegoLink-k (arXiv 2410.15332): every layer computes the first ``k`` rows of each unit that is not exact.

    In a unit (segments encoded alone) the first tokens are attention sinks, although they do not begin the prompt.
    The memory's first unit is exact (as in a full prefill) if it was encoded after the whole context. ``last_k`` adds
    the last ``last_k`` rows of these units: arXiv 2602.23592 describes EPIC as the start and the end of a block.
    The choice is known before layer 0 and costs nothing.
    """

    k: int = 16
    last_k: int = 0
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True)

    def __post_init__(self) -> None:
        for name, value in (("k", self.k), ("last_k", self.last_k)):
            if value < 0:
                raise ConfigError(f"{name}={value} is negative: use 0 or more rows per unit")

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        boundaries = np.zeros(layout.rows, bool)
        for unit in layout.placements:
            boundaries[unit.start : min(unit.start + self.k, unit.stop)] = True
            boundaries[max(unit.stop - self.last_k, unit.start) : unit.stop] = True
        repairs = torch.from_numpy(boundaries).to(layout.fresh.device) & layout.reused
        return (layout.fresh | repairs).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active
