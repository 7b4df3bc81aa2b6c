"""At which layer does a signal know what matters? The needle's rank per layer, as in SparseX's figures 5 and 6.

Three signals rank the rows of a memory whose blocks were encoded line by line, while every row is recomputed: the
deviation of fresh from cached values (CacheBlend), the attention of the last query row, and that of all new rows
(Sparse-Q). The needle is the line that the question names and the line that holds the answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from rich.table import Table

from eval.common.plots import figure, style
from eval.recall.cells import Cell
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, lay_out, place
from memory.prompt.units import Unit
from memory.stages import Capabilities, Probe

if TYPE_CHECKING:
    from memory.engine.base import Engine
    from planners.prompts.formats import Format
    from planners.training.recall_probes import Probe as Question

SIGNALS = ("deviation", "last query", "Sparse-Q")


@dataclass
class Watch:
    """Recomputes every row and notes the three signals of every layer."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    seen: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # per signal: (memory rows,) of each layer

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self._new = layout.fresh.nonzero()[:, 0]
        self._known = (~layout.fresh).nonzero()[:, 0]
        self._known = self._known[self._known >= layout.context]
        self.seen = {signal: [] for signal in SIGNALS}
        return torch.arange(layout.context, layout.rows)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        (fresh,) = probe.fresh_kv(layer + 1, self._known, "v")
        (cached,) = probe.cached_kv(layer + 1, self._known, "v")
        attention = (probe.mass_on_rows(rows)[self._known] for rows in (self._new[-1:], self._new))
        for signal, values in zip(SIGNALS, ((fresh - cached).pow(2).sum((0, 2)), *attention), strict=True):
            self.seen[signal].append(values)
        return active


@dataclass(frozen=True, slots=True)
class Ranks:
    """Median over probes of the needle's rank, in % of the memory rows (0 is the top), per layer."""

    cell: Cell
    signal: str
    named: list[float]  # the line that the question names
    holds: list[float]  # the line that holds the answer


def watch(engine: Engine, format: Format, question: Question) -> dict[str, tuple[list[float], list[float]]]:
    """Per signal the ranks of one probe's two needles in %, layer by layer: the best row of a line counts."""
    context = format.context()
    before = engine.encode([(None, context)])[0] if context else None
    units = [Unit.of("segment", [(fact.id, format.line(fact.text))]) for fact in question.facts]
    blocks = engine.encode([(before, unit.token_ids) for unit in units])
    front = [Unit("new", tuple(format.line(question.front)), (), reusable=False)] if question.front else []
    placed = place([*front, *units], len(context), [*([None] * len(front)), *blocks], [False] * (len(front + units)))
    layout = lay_out(context, placed, format.line(question.question), True, engine.device)
    stage = Watch()
    engine.prefill(layout, stage, Serial(), before)
    first = len(context) + len(format.line(question.front))
    spans = {span.segment: (span.start - first, span.stop - first) for span in layout.segments}
    ends, found = (question.needles[0], question.needles[-1]), {}
    for signal, layers in stage.seen.items():
        ranks = [[_rank(values, *spans[needle]) for values in layers] for needle in ends]
        found[signal] = (ranks[0], ranks[1])
    return found


def _rank(values: torch.Tensor, start: int, stop: int) -> float:
    """How many of the rows are above the best of ``start:stop``, in %."""
    return 100 * float((values > values[start:stop].max()).sum()) / len(values)


def measure_ranks(engine: Engine, format: Format, cells: Sequence[Cell], trials: int, seed: int) -> list[Ranks]:
    """Medians over ``trials`` probes of every kind and cue, at its largest number of lines."""
    found = []
    largest: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        largest[cell.kind, cell.cue] = max(cell, largest.get((cell.kind, cell.cue), cell), key=lambda c: c.segments)
    for cell in largest.values():
        runs = [watch(engine, format, cell.probe(trial, seed)) for trial in range(trials)]
        for signal in SIGNALS:
            both = [_median(run[signal][needle] for run in runs) for needle in (0, 1)]
            found.append(Ranks(cell, signal, *both))
    return found


def _median(ranks: Sequence[list[float]]) -> list[float]:
    return [statistics.median(layer) for layer in zip(*ranks, strict=True)]


def rank_table(ranks: Sequence[Ranks]) -> Table:
    layers = len(ranks[0].named)
    table = Table(title="rank of the line that the question names, in % of the memory rows (median; 0 is the top)")
    for heading in ("kind", "cue", "lines", "signal"):
        table.add_column(heading, no_wrap=True)
    for layer in range(layers):
        table.add_column(f"L{layer}", justify="right")
    for one in ranks:
        figures = (f"{value:.0f}" for value in one.named)
        table.add_row(one.cell.kind, one.cell.cue, str(one.cell.segments), one.signal, *figures)
    return table


def rank_figure(ranks: Sequence[Ranks], file: Path) -> None:
    """Solid: the line that the question names; dashed: the line that holds the answer."""
    panels = sorted(dict.fromkeys(one.cell for one in ranks), key=lambda cell: cell.cue)
    columns = len({cell.kind for cell in panels})
    with figure(file, len(panels), columns, "rank of the needle, % of memory rows") as axes:
        for axis, cell in zip(axes, panels, strict=True):
            axis.set_title(f"{cell.kind}, cue {cell.cue}, {cell.segments} lines", fontsize=9)
            axis.set_xlabel("layer", fontsize=8)
            for number, one in enumerate(one for one in ranks if one.cell == cell):
                axis.plot(one.named, label=one.signal, **style(number + 1))
                axis.plot(one.holds, linestyle="--", **style(number + 1))
        axes[0].invert_yaxis()
        axes[-1].legend(fontsize=7)
