"""Value deviation: CacheBlend's choice of the rows whose stored values are furthest from newly computed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.prompt.layout import Layout
from memory.recompute.multi_hop import Schedule
from memory.stages import Capabilities, Probe

DEVIATIONS = ("v", "k", "kv")
SELECTIONS = ("gradual", "single")


@dataclass
class ValueDeviation:
    """CacheBlend (arXiv 2405.16444): after layer 0 the memory rows of largest deviation stay active (computed).

    After layer i, a row's deviation is the squared difference between its new values (or keys, or both) at layer i + 1
    and those in its block, summed over heads and dimensions. Keys are compared before RoPE, which keeps distances.

    ``selection=gradual``, as in the paper: a `Schedule` of ``shape`` lowers the number of active memory rows from layer
    to layer. ``ratio`` is their mean share of the memory over layers 1 to the last. ``single``, as in the published
    code: the rows chosen for layer 1 stay active. Fresh rows (without stored KV) always stay active.
    """

    ratio: float = 0.15
    deviation: str = "v"
    selection: str = "gradual"
    shape: str = "linear"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True)

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio={self.ratio} is not a share of memory rows: use 0 to 1")
        check_choice("deviation", self.deviation, DEVIATIONS)
        check_choice("selection", self.selection, SELECTIONS)
        last_share = {} if self.selection == "gradual" else {"last": 1.0}
        self._schedule = Schedule(self.shape, self.ratio, **last_share)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self._layout = layout
        self._counts = self._schedule.counts(layers, int(layout.reused.sum()))
        return (~layout.exact).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        memory = active[self._layout.reused[active]]
        count = self._counts[layer + 1] if layer + 1 < len(self._counts) else memory.numel()
        if count >= memory.numel():
            return active
        fresh_rows = active[self._layout.fresh[active]]
        if not count:
            return fresh_rows
        # a stable sort: ties go to the earlier row
        furthest = self._deviations(layer + 1, memory, probe).sort(descending=True, stable=True).indices[:count]
        return torch.cat([fresh_rows, memory[furthest]]).sort().values

    def _deviations(self, layer: int, rows: torch.Tensor, probe: Probe) -> torch.Tensor:
        """Compute (len(rows),) deviations in float32 or float64."""
        new, stored = probe.fresh_kv(layer, rows, self.deviation), probe.cached_kv(layer, rows, self.deviation)
        return sum(map(_squared_distance, new, stored))


def _squared_distance(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Compute (rows,) squared distances of two (heads, rows, head_dim)."""
    wide = torch.promote_types(new.dtype, torch.float32)
    return (new.to(wide) - old.to(wide)).square().sum((0, 2))
