"""Tables and figure of the study of lines that were encoded apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from eval.common.intervals import wilson
from eval.common.plots import figure, style
from eval.common.tables import table_of
from eval.isolation.measure import Answer, Deviation


def deviation_table(deviations: Mapping[str, Deviation]) -> Table:
    title = "relative deviation from rows that were computed in the prompt; means over layers 1 to the last"
    rows = []
    for name, deviation in deviations.items():
        parts = [values[1:].mean(0) for values in (deviation.keys, deviation.values)]
        thirds = deviation.values[1:].mean(1).tensor_split(3)
        cells = [f"{part[cut].mean():.2f}" for part in parts for cut in (slice(0, 1), slice(1, None))]
        rows.append([name, *cells, *(f"{third.mean():.2f}" for third in thirds)])
    headings = ["keys, first row", "keys, other rows", "values, first row", "values, other rows"]
    return table_of(title, ["encoded after"], [*headings, "values, early", "middle", "late layers"], rows)


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


def draw(deviations: Mapping[str, Deviation], answers: Sequence[Answer], file: Path) -> None:
    """Draw the values' deviation by layer and by row, and right answers by what the lines were encoded after."""
    encodings = list(deviations)
    with figure(file, 3, 3) as (by_layer, by_row, right):
        for number, (name, deviation) in enumerate(deviations.items()):
            by_layer.plot(deviation.values.mean(1), label=f"after {name}", **style(number))
            by_row.plot(deviation.values[1:].mean(0), label=f"after {name}", **style(number))
        for number, repair in enumerate(dict.fromkeys(answer.repair for answer in answers)):
            parts = [_part(answers, encoding, repair) for encoding in encodings]
            shares = [100 * sum(answer.right for answer in part) / len(part) for part in parts]
            right.plot(range(len(encodings)), shares, label=repair, **style(number))
        right.set_xticks(range(len(encodings)), encodings, rotation=60)
        titles = ("deviation of values by layer", "deviation of values by row of a line", "right answers, %")
        labels = ("layer", "row", "lines were encoded after")
        for axis, title, label in zip((by_layer, by_row, right), titles, labels, strict=True):
            axis.set_title(title, fontsize=9)
            axis.set_xlabel(label, fontsize=8)
            axis.legend(fontsize=6)
