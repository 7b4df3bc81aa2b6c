"""Tables and figure of the study of lines that were encoded apart. Intervals are clustered by memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

import torch
from rich.table import Table

from eval.common.intervals import Interval, Samples, mean_interval, share_interval
from eval.common.plots import figure, style
from eval.common.tables import MISSING, table_of
from eval.isolation.measure import Answer
from eval.isolation.rows import EncodingRow

Measure = Callable[[Answer], float]


class Findings:
    """Rows of a study, by encoding."""

    def __init__(self, rows: Sequence[EncodingRow], repairs: Sequence[str]) -> None:
        self.repairs = repairs
        self.rows: dict[str, list[EncodingRow]] = {}
        for row in rows:
            self.rows.setdefault(row.encoding, []).append(row)

    def mean(self, encoding: str, part: str) -> torch.Tensor:
        """Return the mean of a part of the rows over the memories, (layers, rows of a line) or (layers, 3)."""
        tables = [torch.tensor(getattr(row, part)) for row in self.rows[encoding]]
        rows = min(table.shape[1] for table in tables)
        return torch.stack([table[:, :rows] for table in tables]).mean(0)

    def samples(self, encoding: str, repair: str, measure: Measure) -> Samples:
        """Return a measure of the answers by memory."""
        return {
            row.memory: [float(measure(answer)) for answer in row.answers if answer.repair == repair]
            for row in self.rows[encoding]
        }

    def tables(self) -> Iterator[Table]:
        yield self._deviations()
        yield self._attention()
        yield self._answers()
        yield self._divergences()
        first, *rest = self.rows
        if rest:
            title = f"change of the KL divergence in nats, against lines encoded after: {first}"
            yield self._table(title, rest, lambda encoding, repair: self._change(encoding, first, repair))
        if len(self.repairs) > 1:
            title = f"change of right answers in points, against the repair: {self.repairs[0]}"
            yield self._table(title, list(self.rows), self._gain, self.repairs[1:])

    def _deviations(self) -> Table:
        title = "relative deviation from rows that were computed in the prompt; means over layers 1 to the last"
        rows = []
        for encoding in self.rows:
            deviations = [self.mean(encoding, part)[1:] for part in ("keys", "values")]
            cells = [f"{part[:, cut].mean():.2f}" for part in deviations for cut in (slice(0, 1), slice(1, None))]
            rows.append([encoding, *cells, *(f"{third.mean():.2f}" for third in deviations[1].tensor_split(3))])
        headings = ["keys, first row", "keys, other rows", "values, first row", "values, other rows"]
        return table_of(title, ["encoded after"], [*headings, "values, early", "middle", "late layers"], rows)

    def _attention(self) -> Table:
        title = "attention of the query in %, means over layers 1 to the last but one; median rank of the named line"
        rows = []
        for encoding, parts in self.rows.items():
            shares = 100 * self.mean(encoding, "shares")[1:].mean(0)
            ranks = zip(*(ranks for row in parts for ranks in row.ranks), strict=True)
            rows.append([encoding, *(f"{share:.1f}" for share in shares), *(f"{median(rank):g}" for rank in ranks)])
        headings = ["prefix", "first rows, of lines", "named line, of lines", "rank by mean", "rank by maximum"]
        return table_of(title, ["encoded after"], headings, rows)

    def _answers(self) -> Table:
        title = "right answers in % with 95 % intervals, by the text after which lines were encoded"
        return self._table(title, list(self.rows), self._right)

    def _divergences(self) -> Table:
        title = "KL divergence from full recomputation over the candidates (nats), and its answer taken in %"
        return self._table(title, list(self.rows), self._divergence)

    def _table(
        self, title: str, encodings: Sequence[str], cell: Callable[[str, str], str], repairs: Sequence[str] = ()
    ) -> Table:
        rows = []
        for repair in repairs or self.repairs:
            shares = [answer.computed for part in self.rows.values() for row in part for answer in row.answers
                      if answer.repair == repair]  # fmt: skip
            rows.append([repair, f"{fmean(shares):.2f}", *(cell(encoding, repair) for encoding in encodings)])
        return table_of(title, ["recomputed lines"], ["computed", *encodings], rows)

    def _right(self, encoding: str, repair: str) -> str:
        samples = self.samples(encoding, repair, lambda answer: answer.right)
        return f"{100 * _mean(samples):.0f} {_bounds(share_interval(samples), '.0f', 100)}"

    def _divergence(self, encoding: str, repair: str) -> str:
        divergence, same = (
            _mean(self.samples(encoding, repair, measure))
            for measure in (lambda answer: answer.divergence, lambda answer: answer.same)
        )
        return f"{divergence:.2f}, {100 * same:.0f}"

    def _change(self, encoding: str, baseline: str, repair: str) -> str:
        sides = (self.samples(name, repair, lambda answer: answer.divergence) for name in (encoding, baseline))
        changes = _differences(*sides)
        return f"{_mean(changes):+.2f} {_bounds(mean_interval(changes), '.2f')}"

    def _gain(self, encoding: str, repair: str) -> str:
        sides = (self.samples(encoding, name, lambda answer: answer.right) for name in (repair, self.repairs[0]))
        gains = _differences(*sides)
        return f"{100 * _mean(gains):+.0f} {_bounds(mean_interval(gains, within=(-1, 1)), '.0f', 100)}"

    def draw(self, file: Path) -> None:
        """Draw deviation by layer and by row, attention to the named line, and right answers, for each encoding."""
        with figure(file, 4, 2) as (by_layer, by_row, attention, right):
            for number, encoding in enumerate(self.rows):
                look = {"label": f"after {encoding}", **style(number)}
                values = self.mean(encoding, "values")
                by_layer.plot(values.mean(1), **look)
                by_row.plot(values[1:].mean(0), **look)
                attention.plot(100 * self.mean(encoding, "shares")[:, 2], **look)
            for number, repair in enumerate(self.repairs):
                shares = [_mean(self.samples(name, repair, lambda answer: answer.right)) for name in self.rows]
                right.plot(range(len(shares)), [100 * share for share in shares], label=repair, **style(number))
            right.set_xticks(range(len(self.rows)), list(self.rows), rotation=60)
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


def _mean(samples: Samples) -> float:
    return fmean(value for part in samples.values() for value in part)


def _differences(samples: Samples, baseline: Samples) -> Samples:
    """Return the differences of the same questions, by memory."""
    return {key: [a - b for a, b in zip(samples[key], baseline[key], strict=True)] for key in samples}


def _bounds(interval: Interval, form: str, scale: float = 1) -> str:
    return f"({MISSING})" if interval is None else f"({scale * interval[0]:{form}} to {scale * interval[1]:{form}})"
