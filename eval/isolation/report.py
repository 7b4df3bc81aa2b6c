"""Tables and figure of the study of lines that were encoded apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.table import Table

from eval.common.intervals import wilson
from eval.common.plots import figure, style
from eval.common.tables import table_of
from eval.isolation.measure import Answer
from eval.isolation.rows import EncodingRow


def deviation_table(measured: Sequence[EncodingRow]) -> Table:
    title = "relative deviation from rows that were computed in the prompt; means over layers 1 to the last"
    rows = []
    for row in measured:
        parts = [values[1:].mean(0) for values in (row.deviation.keys, row.deviation.values)]
        thirds = row.deviation.values[1:].mean(1).tensor_split(3)
        cells = [f"{part[cut].mean():.2f}" for part in parts for cut in (slice(0, 1), slice(1, None))]
        rows.append([row.id, *cells, *(f"{third.mean():.2f}" for third in thirds)])
    headings = ["keys, first row", "keys, other rows", "values, first row", "values, other rows"]
    return table_of(title, ["encoded after"], [*headings, "values, early", "middle", "late layers"], rows)


def attention_table(measured: Sequence[EncodingRow]) -> Table:
    title = "where the query's attention goes, in %: means over layers 1 to the last but one; median rank of the line"
    rows = []
    for row in measured:
        shares = 100 * torch.tensor(row.shares)[1:].mean(0)
        rows.append([row.id, *(f"{share:.1f}" for share in shares), *map(median, zip(*row.ranks, strict=True))])
    headings = ["prefix", "first rows, of lines", "named line, of lines", "rank by mean", "rank by maximum"]
    return table_of(title, ["encoded after"], headings, [list(map(str, row)) for row in rows])


def answer_table(answers: Sequence[Answer], encodings: Sequence[str], repairs: Sequence[str]) -> Table:
    rows = []
    for repair in repairs:
        cells = []
        for encoding in encodings:
            part = _part(answers, encoding, repair)
            share = sum(answer.right for answer in part) / len(part)
            low, high = wilson(share, len(part))
            cells.append(f"{100 * share:.0f} ({100 * low:.0f} to {100 * high:.0f})")
        computed = [answer.computed for answer in answers if answer.repair == repair]
        rows.append([repair, f"{sum(computed) / len(computed):.2f}", *cells])
    title = "right answers in % with 95 % intervals, by the text after which lines were encoded"
    return table_of(title, ["recomputed lines"], ["computed", *encodings], rows)


def divergence_table(answers: Sequence[Answer], encodings: Sequence[str], repairs: Sequence[str]) -> Table:
    rows = []
    for repair in repairs:
        cells = []
        for encoding in encodings:
            part = _part(answers, encoding, repair)
            same = 100 * sum(answer.same for answer in part) / len(part)
            cells.append(f"{sum(answer.divergence for answer in part) / len(part):.2f}, {same:.0f}")
        rows.append([repair, *cells])
    title = "KL divergence from full recomputation over the candidates (nats), and its answer taken in %"
    return table_of(title, ["recomputed lines"], encodings, rows)


def _part(answers: Sequence[Answer], encoding: str, repair: str) -> list[Answer]:
    return [answer for answer in answers if (answer.encoding, answer.repair) == (encoding, repair)]


def draw(measured: Sequence[EncodingRow], answers: Sequence[Answer], file: Path) -> None:
    """Draw deviation by layer and by row, attention to the named line, and right answers, for each encoding."""
    encodings = [row.id for row in measured]
    with figure(file, 4, 2) as (by_layer, by_row, attention, right):
        for number, row in enumerate(measured):
            look = {"label": f"after {row.id}", **style(number)}
            by_layer.plot(row.deviation.values.mean(1), **look)
            by_row.plot(row.deviation.values[1:].mean(0), **look)
            attention.plot([100 * share for _, _, share in row.shares], **look)
        for number, repair in enumerate(dict.fromkeys(answer.repair for answer in answers)):
            parts = [_part(answers, encoding, repair) for encoding in encodings]
            shares = [100 * sum(answer.right for answer in part) / len(part) for part in parts]
            right.plot(range(len(encodings)), shares, label=repair, **style(number))
        right.set_xticks(range(len(encodings)), encodings, rotation=60)
        texts = (
            (by_layer, "deviation of values by layer", "layer"),
            (by_row, "deviation of values by row of a line", "row"),
            (attention, "attention of the query to the named line, % of lines", "layer"),
            (right, "right answers, %", "lines were encoded after"),
        )
        for axis, title, label in texts:
            axis.set_title(title, fontsize=9)
            axis.set_xlabel(label, fontsize=8)
            axis.legend(fontsize=6)
