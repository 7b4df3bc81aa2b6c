"""Ranks of a probe's needles per layer by three recompute signals, as in SparseX's figures 5 and 6.

The needles are the line that the question names and the line with the answer. Every row after the context prefix is
recomputed. The signals are the deviation of fresh from cached values (CacheBlend), the attention of the last query
row, and the attention of all fresh rows (Sparse-Q).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from rich.table import Table

from eval.common.plots import figure, style
from eval.common.tables import table_of
from eval.recall.cells import Cell
from memory.engine.base import Engine
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.stages import Capabilities, Probe
from planners.prompts.formats import Format
from planners.training.recall_probes import RecallProbe

SIGNALS = ("deviation", "last query", "Sparse-Q")


@dataclass
class RecordSignals:
    """Recompute stage that drops no row and records the three signals at every layer."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    signals: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # per signal and layer: (memory rows,)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        self._new = layout.fresh.nonzero()[:, 0]
        self._known = (~layout.fresh).nonzero()[:, 0]
        self._known = self._known[self._known >= layout.context]
        self.signals = {signal: [] for signal in SIGNALS}
        return torch.arange(layout.context, layout.rows)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        (fresh,) = probe.fresh_kv(layer + 1, self._known, "v")
        (cached,) = probe.cached_kv(layer + 1, self._known, "v")
        attention = (probe.mass_on_rows(rows)[self._known] for rows in (self._new[-1:], self._new))
        for signal, values in zip(SIGNALS, ((fresh - cached).pow(2).sum((0, 2)), *attention), strict=True):
            self.signals[signal].append(values)
        return active


@dataclass(frozen=True, slots=True)
class NeedleRanks:
    """Median ranks of both needles over probes, layer by layer, in % of the memory rows (0 is the top)."""

    cell: Cell
    signal: str
    question_line: list[float]  # line that the question names
    answer_line: list[float]  # line with the answer


def needle_ranks(engine: Engine, format: Format, probe: RecallProbe) -> dict[str, tuple[list[float], list[float]]]:
    """Return per signal the ranks of a probe's two needles in %, by layer; a line has the rank of its best row."""
    context = format.context()
    context_block = engine.encode([(None, context)])[0] if context else None
    units = [Unit.of("segment", [(fact.id, format.line(fact.text))]) for fact in probe.facts]
    blocks = engine.encode([(context_block, unit.token_ids) for unit in units])
    front_units = [Unit("new", tuple(format.line(probe.front)), (), reusable=False)] if probe.front else []
    all_units, all_blocks = [*front_units, *units], [*([None] * len(front_units)), *blocks]
    placements = place(all_units, len(context), all_blocks, [False] * len(all_units))
    layout = lay_out(context, placements, format.line(probe.question), True, engine.device)
    stage = RecordSignals()
    engine.prefill(layout, stage, Serial(), context_block)
    first = len(context) + len(format.line(probe.front))
    spans = {span.segment: (span.start - first, span.stop - first) for span in layout.segments}
    needles = [spans[probe.needles[index]] for index in (0, -1)]
    return {
        signal: tuple([_rank(values, *needle) for values in layers] for needle in needles)
        for signal, layers in stage.signals.items()
    }


def _rank(values: torch.Tensor, start: int, stop: int) -> float:
    """Return the share of rows above the best row of ``start:stop``, in %."""
    return 100 * float((values > values[start:stop].max()).sum()) / len(values)


def measure_ranks(engine: Engine, format: Format, cells: Sequence[Cell], trials: int, seed: int) -> list[NeedleRanks]:
    """Return medians over ``trials`` probes for every kind and cue, at the largest number of lines of that pair."""
    medians = []
    largest: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        largest[cell.kind, cell.cue] = max(cell, largest.get((cell.kind, cell.cue), cell), key=lambda c: c.segments)
    for cell in largest.values():
        runs = [needle_ranks(engine, format, cell.probe(trial, seed)) for trial in range(trials)]
        for signal in SIGNALS:
            by_needle = (zip(*(run[signal][needle] for run in runs), strict=True) for needle in (0, 1))
            medians.append(NeedleRanks(cell, signal, *(list(map(statistics.median, layers)) for layers in by_needle)))
    return medians


def rank_table(ranks: Sequence[NeedleRanks]) -> Table:
    title = "rank of the line that the question names, in % of the memory rows (median; 0 is the top)"
    rows = []
    for rank in ranks:
        figures = (f"{value:.0f}" for value in rank.question_line)
        rows.append([rank.cell.kind, rank.cell.cue, str(rank.cell.segments), rank.signal, *figures])
    layers = [f"L{layer}" for layer in range(len(ranks[0].question_line))]
    return table_of(title, ["kind", "cue", "lines", "signal"], layers, rows, wrap=True)


def rank_figure(ranks: Sequence[NeedleRanks], file: Path) -> None:
    """Draw the ranks of the line that the question names (solid) and of the line with the answer (dashed)."""
    panels = sorted(dict.fromkeys(rank.cell for rank in ranks), key=lambda cell: cell.cue)
    columns = len({cell.kind for cell in panels})
    with figure(file, len(panels), columns, "rank of the needle, % of memory rows") as axes:
        for axis, cell in zip(axes, panels, strict=True):
            axis.set_title(f"{cell.kind}, cue {cell.cue}, {cell.segments} lines", fontsize=9)
            axis.set_xlabel("layer", fontsize=8)
            for number, rank in enumerate(rank for rank in ranks if rank.cell == cell):
                axis.plot(rank.question_line, label=rank.signal, **style(number + 1))
                axis.plot(rank.answer_line, linestyle="--", **style(number + 1))
        axes[0].invert_yaxis()
        axes[-1].legend(fontsize=7)
