"""Accuracy tables and figure of recall probes: per method and number of segments, paired with the first method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.table import Table

from eval.common.intervals import Difference, paired_difference, wilson
from eval.common.plots import figure, style
from eval.common.tables import difference, number, percent, share, table_of
from eval.recall.cells import Cell, ProbeAnswer

ACCURACIES = "recall.png"  # the figure


@dataclass(frozen=True, slots=True)
class Score:
    """Result of one method on the probes of one cell; tokens and ratios are means over the probes."""

    cell: Cell
    method: str
    trials: int
    accuracy: float
    accuracy_interval: tuple[float, float]  # Wilson's interval: probes are independent
    gap: Difference | None  # paired difference to the first method; None for the first method itself
    memory_tokens: float
    prefill_tokens: float
    computed_ratio: float
    recomputed_ratio: float


def score(answers: Sequence[ProbeAnswer], baseline: Sequence[ProbeAnswer]) -> Score:
    """Score one method's ``answers`` in one cell against the first method's answers to the same probes."""
    gaps = {a.trial: [float(a.right) - float(b.right)] for a, b in zip(answers, baseline, strict=True)}
    first, count = answers[0], len(answers)
    fields = "right", "memory_tokens", "prefill_tokens", "computed_ratio", "recomputed_ratio"
    right, *means = (sum(getattr(answer, field) for answer in answers) / count for field in fields)
    gap = None if answers is baseline else paired_difference(gaps)
    return Score(first.cell, first.method, count, right, wilson(right, count), gap, *means)


def scores(answers: Sequence[ProbeAnswer], methods: Sequence[str]) -> list[Score]:
    """Return the scores of every cell and method, in the order of the answers."""
    results = []
    for cell in dict.fromkeys(answer.cell for answer in answers):
        by_method = {m: [a for a in answers if a.cell == cell and a.method == m] for m in methods}
        results += [score(by_method[method], by_method[methods[0]]) for method in methods]
    return results


def accuracy_table(results: Sequence[Score], kind: str, cue: str) -> Table:
    """Return accuracy by method and number of segments, with the cost at the largest number."""
    rows = [row for row in results if (row.cell.kind, row.cell.cue) == (kind, cue)]
    sizes = list(dict.fromkeys(row.cell.segments for row in rows))
    title = f"{kind}, cue {cue}: right answers in % of {rows[0].trials} probes, with 95 % intervals, by segments"
    headings = (*map(str, sizes), f"computed at {sizes[-1]}", f"prefill tokens at {sizes[-1]}")
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        line = [row for row in rows if row.method == method]
        costs = number(line[-1].computed_ratio), number(line[-1].prefill_tokens, 1)
        lines.append([method, *(share(row.accuracy, row.accuracy_interval) for row in line), *costs])
    return table_of(title, ["method"], headings, lines, wrap=True)


def mark_table(results: Sequence[Score], mark: float) -> Table:
    """Compare all methods at the largest memory at which the first method's accuracy still reaches ``mark``."""
    title = f"at the largest memory where {results[0].method} is right in {percent(mark)} % or more"
    headings = "right %, 95 % interval", "gap, points, 95 % interval", "computed", "recomputed"
    lines: list[Sequence[str] | None] = []
    for kind, cue in dict.fromkeys((row.cell.kind, row.cell.cue) for row in results):
        rows = [row for row in results if (row.cell.kind, row.cell.cue) == (kind, cue)]
        baseline = [row for row in rows if row.method == results[0].method]
        largest = max((row.cell.segments for row in baseline if row.accuracy >= mark), default=None)
        if largest is None:
            best = f"≤ {percent(max(row.accuracy for row in baseline))}"
            lines.append([kind, cue, "none", baseline[0].method, best])
        for row in rows:
            if row.cell.segments == largest:
                right, gap = share(row.accuracy, row.accuracy_interval), difference(row.gap)
                shares = number(row.computed_ratio), number(row.recomputed_ratio)
                lines.append([kind, cue, str(largest), row.method, right, gap, *shares])
        lines.append(None)
    return table_of(title, ["kind", "cue", "segments", "method"], headings, lines)


def accuracy_figure(results: Sequence[Score], file: Path) -> None:
    """Draw accuracy against the number of segments: a column of panels per kind, a row per cue."""
    kinds = list(dict.fromkeys(row.cell.kind for row in results))
    cues = list(dict.fromkeys(row.cell.cue for row in results))
    with figure(file, len(kinds) * len(cues), len(kinds), "right answers, %") as axes:
        for axis, (cue, kind) in zip(axes, product(cues, kinds), strict=True):
            axis.set_title(f"{kind}, cue {cue}", fontsize=9)
            axis.set_xlabel("segments of memory", fontsize=8)
            for index, method in enumerate(dict.fromkeys(row.method for row in results)):
                line = [r for r in results if (r.cell.kind, r.cell.cue, r.method) == (kind, cue, method)]
                axis.plot(
                    [r.cell.segments for r in line], [100 * r.accuracy for r in line], label=method, **style(index)
                )
        legend = axes[-1].get_legend_handles_labels()
        axes[-1].figure.legend(*legend, loc="outside lower center", ncols=9, fontsize=7)  # panels may be too small
