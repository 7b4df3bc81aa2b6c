"""Full recomputation: every row is computed at every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe


@dataclass(frozen=True)
class Full:
    """Plain prefill of all rows, the context prefix included: nothing is reused."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, reads_blocks=False)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return torch.arange(layout.rows, device=layout.token_ids.device)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active
