"""Answers to probes as accuracies: paired with the first method, by number of segments, as tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.table import Table

from eval.common.intervals import Difference, paired_difference, wilson
from eval.common.plots import figure, style
from eval.common.tables import difference, number, percent, share
from eval.recall.cells import Answer, Cell

ACCURACIES = "recall.png"  # the figure


@dataclass(frozen=True, slots=True)
class Score:
    """One method over the probes of one cell."""

    cell: Cell
    method: str
    trials: int
    accuracy: float
    accuracy_interval: tuple[float, float]  # Wilson's: probes are independent
    gap: Difference | None  # to the first method, paired; the first itself has none
    memory_tokens: float
    prefill_tokens: float
    computed_ratio: float
    recomputed_ratio: float


def score(answers: Sequence[Answer], ruler: Sequence[Answer]) -> Score:
    """``answers`` of one method in one cell against the first method's to the same probes."""
    gaps = {a.trial: [float(a.right) - float(b.right)] for a, b in zip(answers, ruler, strict=True)}
    first = answers[0]

    def mean(field: str) -> float:
        return sum(getattr(answer, field) for answer in answers) / len(answers)

    return Score(
        first.cell,
        first.method,
        len(answers),
        mean("right"),
        wilson(mean("right"), len(answers)),
        None if answers is ruler else paired_difference(gaps),
        *(mean(field) for field in ("memory_tokens", "prefill_tokens", "computed_ratio", "recomputed_ratio")),
    )


def scores(answers: Sequence[Answer], methods: Sequence[str]) -> list[Score]:
    """Cell by cell, method by method, in the order asked."""
    found = []
    for cell in dict.fromkeys(answer.cell for answer in answers):
        own = {m: [a for a in answers if a.cell == cell and a.method == m] for m in methods}
        found += [score(own[method], own[methods[0]]) for method in methods]
    return found


def accuracy_table(found: Sequence[Score], kind: str, cue: str) -> Table:
    """Accuracy by method and number of segments; last comes the share of token-layers computed at the largest."""
    rows = [one for one in found if (one.cell.kind, one.cell.cue) == (kind, cue)]
    sizes = list(dict.fromkeys(one.cell.segments for one in rows))
    title = f"{kind}, cue {cue}: right answers in % of {rows[0].trials} probes, with 95 % intervals, by segments"
    table = Table(title=title)
    table.add_column("method", no_wrap=True)
    for heading in (*map(str, sizes), f"computed at {sizes[-1]}", f"prefill tokens at {sizes[-1]}"):
        table.add_column(heading, justify="right")
    for method in dict.fromkeys(one.method for one in rows):
        own = [one for one in rows if one.method == method]
        costs = number(own[-1].computed_ratio), number(own[-1].prefill_tokens, 1)
        table.add_row(method, *(share(one.accuracy, one.accuracy_interval) for one in own), *costs)
    return table


def mark_table(found: Sequence[Score], mark: float) -> Table:
    """Every method where it counts: at the largest memory at which the first method is still right ``mark`` often."""
    table = Table(title=f"at the largest memory where {found[0].method} is right in {percent(mark)} % or more")
    for heading in ("kind", "cue", "segments", "method"):
        table.add_column(heading, no_wrap=heading != "method")
    for heading in ("right %, 95 % interval", "gap, points, 95 % interval", "computed", "recomputed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, cue in dict.fromkeys((one.cell.kind, one.cell.cue) for one in found):
        own = [one for one in found if (one.cell.kind, one.cell.cue) == (kind, cue)]
        ruler = [one for one in own if one.method == found[0].method]
        largest = max((one.cell.segments for one in ruler if one.accuracy >= mark), default=None)
        if largest is None:
            table.add_row(kind, cue, "none", ruler[0].method, f"≤ {percent(max(one.accuracy for one in ruler))}")
        for one in own:
            if one.cell.segments == largest:
                right, gap = share(one.accuracy, one.accuracy_interval), difference(one.gap)
                shares = number(one.computed_ratio), number(one.recomputed_ratio)
                table.add_row(kind, cue, str(largest), one.method, right, gap, *shares)
        table.add_section()
    return table


def accuracy_figure(found: Sequence[Score], file: Path) -> None:
    """Accuracy against segments of memory: a column of panels for each kind, a row for each cue."""
    kinds = list(dict.fromkeys(one.cell.kind for one in found))
    cues = list(dict.fromkeys(one.cell.cue for one in found))
    with figure(file, len(kinds) * len(cues), len(kinds), "right answers, %") as axes:
        for axis, (cue, kind) in zip(axes, product(cues, kinds), strict=True):
            axis.set_title(f"{kind}, cue {cue}", fontsize=9)
            axis.set_xlabel("segments of memory", fontsize=8)
            for number_, method in enumerate(dict.fromkeys(one.method for one in found)):
                own = [o for o in found if (o.cell.kind, o.cell.cue, o.method) == (kind, cue, method)]
                sizes, rates = [o.cell.segments for o in own], [100 * o.accuracy for o in own]
                axis.plot(sizes, rates, label=method, **style(number_))
        legend = axes[-1].get_legend_handles_labels()
        axes[-1].figure.legend(*legend, loc="outside lower center", ncols=9, fontsize=7)  # no panel is sure to be empty
