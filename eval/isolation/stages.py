"""Recompute stages of the study of lines that were encoded apart: given lines, and a record of attention."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from memory.prompt.layout import Layout
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.stages import Capabilities, Probe, Recompute

EARLY = 1 / 3  # share of layers, after layer 0, in which the query's attention ranks the lines
LEAST_LAYERS = 3  # attention is recorded at layers 0 to the last but one
MEAN, PEAK = "mean", "peak"  # rankings of lines


@dataclass(frozen=True)
class FixedLines:
    """Recompute stage that computes the given lines, and all new rows, from the first layer to the last."""

    lines: Sequence[int] = ()
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True, by_mass=True)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        selected = torch.zeros(len(layout.segments) + 1, dtype=torch.bool, device=layout.fresh.device)
        selected[list(self.lines)] = True  # the last entry is for rows of no segment
        return (layout.fresh | selected[layout.segment_of]).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active


@dataclass(frozen=True)
class QueryAttention:
    """Recompute stage that computes no stored row, and records the query's attention at every layer but the last."""

    layout: Layout
    on_rows: list[torch.Tensor] = field(default_factory=list)  # by layer: (prompt rows,) sum over heads and query rows
    peak: list[torch.Tensor] = field(default_factory=list)  # by layer: (lines,) maximum over heads and query rows
    capabilities: ClassVar[Capabilities] = FixedLines.capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return FixedLines().first(layout, layers)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.on_rows.append(probe.mass_on_rows(active[active >= self.layout.query]).double())
        self.peak.append(probe.peak_from_query().double())
        return active

    def ranking(self, kind: str) -> list[int]:
        """Return the lines in falling order of their attention, normalised and summed over the early layers.

        :param kind: ``mean``: mean over heads, query rows and a line's tokens; ``peak``: maximum over heads and rows
        """
        layers = self.peak if kind == PEAK else [self._means(on_rows) for on_rows in self.on_rows]
        early = torch.stack(layers[1 : 1 + round(EARLY * len(layers))])
        return (early / early.sum(1, keepdim=True)).sum(0).argsort(descending=True).tolist()

    def _means(self, on_rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([on_rows[span.start : span.stop].mean() for span in self.layout.segments])

    def shares(self, line: int) -> torch.Tensor:
        """Return (layers, 3): shares of the context prefix, of the lines' first rows, and of ``line``.

        The first is a share of the query's attention to prefix and lines, the others of its attention to the lines.
        """
        on_rows, spans = torch.stack(self.on_rows), self.layout.segments
        prefix = on_rows[:, : self.layout.context].sum(1)
        lines = on_rows[:, self.layout.context : self.layout.query].sum(1)
        first = on_rows[:, [span.start for span in spans]].sum(1)
        line_sum = on_rows[:, spans[line].start : spans[line].stop].sum(1)
        return torch.stack([prefix / (prefix + lines), first / lines, line_sum / lines], 1)


def make_repair(name: str, attention: QueryAttention, answer_line: int, lines: int, rng: random.Random) -> Recompute:
    """Make the recompute stage of a repair.

    ``nothing`` and ``full`` recompute no line and all lines; ``named``: the line with the answer; ``random N``: N lines
    with this one among them; ``first K``: the first K rows of every line; ``peak N`` and ``mean N``: the N lines that
    the query's attention ranks first.
    """
    kind, _, number = name.partition(" ")
    if kind in ("nothing", "full"):
        return Nothing() if kind == "nothing" else Full()
    if kind == "first":
        return FirstTokens(int(number))
    if kind == "named":
        return FixedLines([answer_line])
    if kind == "random":
        return FixedLines(
            [answer_line, *rng.sample([line for line in range(lines) if line != answer_line], int(number) - 1)]
        )
    return FixedLines(attention.ranking(kind)[: int(number)])
