"""Sparse-query recomputation: SparseX's choice of the rows that new text attends to, and of rows near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError, check_choice
from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe

CANDIDATES = ("all", "reused")
Mask = NDArray[np.bool_]


@dataclass
class SparseQuery:
    """SparseX (arXiv 2606.01751, algorithm 1): dense early layers, then one choice by the attention of the fresh rows.

    The first ``boundary`` share of layers (at least one) computes all rows that are not exact (as in a full prefill).
    Later layers compute the fresh rows (without stored keys and values), and these reused rows:

    - key rows: the rows with the most attention from the fresh rows, summed over heads. Their number is ``share`` times
      that of the reused rows (the paper gives no number). With ``over=all`` all rows of the prompt compete, as in the
      paper, so that fresh and exact rows take up part of that number. With ``over=reused`` only reused rows compete.
    - overflow: ``overflow`` blocks of ``block`` rows before and after each maximal run of fresh rows.
    - tail: if only the prompt's last row comes after a run of reused rows, the last ``tail`` rows of this run. With
      ``probe_tail`` attention from these rows counts for key rows too: section 3.2 allows it, algorithm 1 does not.
    """

    boundary: float = 0.2
    share: float = 0.15
    block: int = 16
    overflow: int = 1
    tail: int = 64
    probe_tail: bool = False
    over: str = "all"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True, by_mass=True)

    def __post_init__(self) -> None:
        for name, value in (("boundary", self.boundary), ("share", self.share)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}={value} is not a share: use 0 to 1")
        for name, value, least in (("block", self.block, 1), ("overflow", self.overflow, 0), ("tail", self.tail, 0)):
            if value < least:
                raise ConfigError(f"{name}={value} is too small: use {least} or more")
        check_choice("over", self.over, CANDIDATES)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self._layout = layout
        self._dense = max(1, round(self.boundary * layers))
        return (~layout.exact).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        if layer + 1 != self._dense:
            return active
        fresh, reused = (rows.cpu().numpy() for rows in (self._layout.fresh, self._layout.reused))
        tail = self._tail_of(reused)
        sources = torch.from_numpy(fresh | tail if self.probe_tail else fresh).to(active.device)
        stays = torch.from_numpy(fresh | tail | self._neighbours(fresh)).to(active.device)
        stays[self._key_rows(sources.nonzero()[:, 0], probe)] = True
        return active[stays[active]]

    def _key_rows(self, sources: torch.Tensor, probe: Probe) -> torch.Tensor:
        """Return the rows with the most attention from the rows ``sources``; ties go to the earlier row."""
        reused = self._layout.reused
        count = round(self.share * int(reused.sum()))
        if not count:
            return sources
        mass = probe.mass_on_rows(sources)
        if self.over == "reused":
            mass = mass.masked_fill(~reused, -1.0)
        return mass.sort(descending=True, stable=True).indices[:count]

    def _neighbours(self, fresh: Mask) -> Mask:
        """Mark ``overflow`` blocks before and after each run of fresh rows."""
        near, width = np.zeros_like(fresh), self.overflow * self.block
        for start, stop in _runs(fresh):
            near[max(0, start - width) : start] = True
            near[stop : stop + width] = True
        return near

    def _tail_of(self, reused: Mask) -> Mask:
        """Mark the last ``tail`` reused rows, if only the prompt's last row comes after them."""
        tail, runs = np.zeros_like(reused), _runs(reused)
        if runs and runs[-1][1] == len(reused) - 1:
            start, stop = runs[-1]
            tail[max(start, stop - self.tail) : stop] = True
        return tail


def _runs(mask: Mask) -> list[tuple[int, int]]:
    """Return (start, stop) of the maximal runs of true rows."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
