"""What a run shows: times, where they go, distance to the floor, growth, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from eval.tables import MISSING, bounds, number
from eval.timing.rates import Rates
from eval.timing.statistics import Ratio, Spread
from eval.timing.summary import BASES, KINDS, CellSummary, GroupSummary, Standing
from keep_agent.results import PARTS

READS = {"memory": "memory", "append": "transcript", "plain": "same prompt"}
MIB = 1 << 20
GROWTH_AT = 40  # segments


def group_tables(group: GroupSummary, scored: bool) -> list[Table]:
    """All that is known of a group of cells."""
    makers = (times_table(group, scored), kinds_table(group), parts_table(group), floor_table(group))
    return [table for table in (*makers, growth_table(group), refused_table(group)) if table is not None]


def times_table(group: GroupSummary, scored: bool) -> Table:
    """Time to the first token and to the decision, and how many times faster that is than others."""
    note = "" if scored else "; no candidates were scored, so decision is the end of the prompt"
    table = _table(
        f"time to the first token: {group.title}",
        f"ms, all steps; p50 with its 95 % interval; x: the median over steps of base / own, paired{note}",
        ("reads", "tokens", "ttft p50", "p95", "decision p50", *(f"x {base}" for base in BASES)),
    )
    for cell, standing, first in _rows(group):
        ttft, decision = standing.spread(), standing.spread("decision_ms")
        shown = [READS[standing.prompt], number(standing.counts["prompt_tokens"], 0), _with_interval(ttft)]
        shown += [number(ttft.p95, 1), number(decision.p50, 1)]
        _add(table, cell, standing, first, [*shown, *(_ratio(standing.ratios[base]) for base in BASES)])
    return table


def kinds_table(group: GroupSummary) -> Table:
    """Cold steps and those in which a group flipped its kind, apart."""
    table = _table(
        f"ttft by kind of step: {group.title}",
        "p50 in ms (steps); cold: the first after a reset; flip: a group became static, or is no longer; overlapped: "
        "without what was encoded while the robot moved",
        (*KINDS, "overlapped, all"),
    )
    for cell, standing, first in _rows(group):
        cells = [_counted(standing.spread(kind=kind)) for kind in KINDS]
        _add(table, cell, standing, first, [*cells, number(standing.spread("ttft_overlapped_ms").p50, 1)])
    return table


def parts_table(group: GroupSummary) -> Table:
    """Where the time goes; the planner's own part is apart from the sentence encoder's."""
    table = _table(
        f"parts of a step: {group.title}",
        "p50 in ms, all steps; planner: update + retrieve + ask, outside the model and the sentence encoder",
        ("planner", *PARTS, "score"),
    )
    for cell, standing, first in _rows(group):
        parts = (number(standing.parts[part], 2) for part in PARTS)
        score = number(standing.spread("score_ms").p50, 2)
        shown = [number(standing.overhead, 2), *parts, score] if standing.prompt != "plain" else [MISSING] * 9
        _add(table, cell, standing, first, shown)
    return table


def floor_table(group: GroupSummary) -> Table:
    """Work, distance to the floor, memory."""
    table = _table(
        f"work and memory: {group.title}",
        "computed: share of the prompt's rows x layers; encoded: rows per step; floor: operations and bytes at the "
        f"machine's rates; peak: growth within a step. {_rates(group)}",
        ("computed %", "encoded", "floor ms", "x floor, no flip", "x floor, all", "peak MiB", "cold MiB", "stored MiB"),
    )
    for cell, standing, first in _rows(group):
        encoded = standing.counts["encoded_token_layers"] * standing.counts["prompt_tokens"]
        rows = standing.counts["token_layers"] / max(standing.computed_ratio, 1e-9)
        quiet, every = standing.floor["no_flip"], standing.floor["all"]
        shown = [number(100 * standing.computed_ratio, 1), number(encoded / rows, 0), number(every.ms, 1)]
        shown += [MISSING if far is None else f"{far.times:.2f}" for far in (quiet, every)]
        shown += [_mib(size) for size in (standing.peak, standing.peak_cold, standing.stored)]
        _add(table, cell, standing, first, shown)
    return table


def growth_table(group: GroupSummary) -> Table | None:
    """What one more segment costs; None where there was one size only."""
    found = {name: growth for name, growth in group.growth.items() if growth is not None}
    if not found:
        return None
    table = Table(
        title=f"growth of ttft: {group.title}",
        caption="ttft = a + b n + c n² of n segments, fitted to p50 of the commonest kind of step that is not cold",
    )
    for heading in ("", "segments", "a ms", "b ms", "c µs", f"ms per segment at {GROWTH_AT}"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for heading in ("quadratic % at the end", "off by at most %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, growth in found.items():
        coefficients = number(growth.fixed, 2), number(growth.linear, 3), number(1e3 * growth.quadratic, 2)
        ends = number(growth.slope(GROWTH_AT), 3), number(100 * growth.curved(growth.high), 1)
        table.add_row(name, f"{growth.low}–{growth.high}", *coefficients, *ends, number(100 * growth.error, 1))
    return table


def refused_table(group: GroupSummary) -> Table | None:
    """Cells and contenders that could not run, and why; None if all did."""
    rows = [(cell.cell.segments, "all", cell.refused) for cell in group.cells if cell.refused]
    rows += [(c.cell.segments, one.name, one.refused) for c in group.cells for one in c.standings if one.refused]
    if not rows:
        return None
    table = Table(title=f"refused: {group.title}")
    for heading in ("segments", "", "why"):
        table.add_column(heading, overflow="fold")
    for segments, name, reason in rows:
        table.add_row(str(segments), name, reason)
    return table


def _table(title: str, caption: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column("segments", justify="right")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=heading not in ("x floor, no flip", "x floor, all"))
    return table


def _rows(group: GroupSummary) -> Iterator[tuple[CellSummary, Standing, bool]]:
    """Contenders that ran, cell by cell; whether each is the first of its cell."""
    for cell in group.cells:
        ran = [standing for standing in cell.standings if standing.times is not None]
        yield from ((cell, standing, number == 0) for number, standing in enumerate(ran))


def _add(table: Table, cell: CellSummary, standing: Standing, first: bool, cells: Sequence[str]) -> None:
    if first and table.row_count:
        table.add_section()
    table.add_row(str(cell.cell.segments) if first else "", standing.name, *cells)


def _with_interval(spread: Spread) -> str:
    return number(spread.p50, 1) + bounds(spread.interval, digits=1)


def _counted(spread: Spread | None) -> str:
    return MISSING if spread is None else f"{number(spread.p50, 1)} ({spread.count})"


def _ratio(ratio: Ratio | None) -> str:
    return MISSING if ratio is None else f"{ratio.paired:.2f}{bounds(ratio.interval)}"


def _mib(size: int | None) -> str:
    return MISSING if size is None else number(size / MIB, 1)


def _rates(group: GroupSummary) -> str:
    """The median cell's, in words."""
    known = [cell.rates for cell in group.cells if cell.rates is not None]
    if not known:
        return ""
    rates = Rates.median(known)
    link = "" if rates.carried is None else f", {rates.carried / 1e9:.1f} GB/s from the host"
    return f"Here {rates.flops / 1e12:.3g} TFLOP/s, {rates.moved / 1e9:.3g} GB/s{link}"
