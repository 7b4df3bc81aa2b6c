"""Tables of a run: times, speed-ups, parts of a step, floor, growth, and refused contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from eval.common.tables import MISSING, bounds, number
from eval.latency.machine import Rates
from eval.latency.report.summary import BASELINES, KINDS, ContenderSummary, GroupSummary, Ratio, Spread
from keep_agent.rollout.results import PARTS

READS = {"memory": "memory", "append": "transcript", "plain": "same prompt"}
KIND_NAMES = {"no_flip": "no flip"}
MIB = 1 << 20
GROWTH_AT = 40  # segments
Cells = Sequence[str]


def group_tables(group: GroupSummary, scored: bool) -> list[Table]:
    """Build all tables of a group of cells."""
    ran = [times_table(group, scored), ratios_table(group), kinds_table(group), parts_table(group), floor_table(group)]
    more = growth_table(group), refusal_table(group)
    return [table for table in (*ran, *more) if table is not None and table.row_count]


def times_table(group: GroupSummary, scored: bool) -> Table:
    """Build the table of time to the first token and to the decision, over all steps."""
    headings = ("reads", "tokens", "ttft p50", "95 %", "p95", "decision p50", "95 %", "p95")
    note = "decision: ttft and scoring" if scored else "no candidates were scored: the decision ends with the prompt"
    return _table("time to the first token", f"ms, all steps; {note}", headings, group, _times)


def _times(summary: ContenderSummary) -> Cells:
    decision = summary.spread("decision_ms") if summary.prompt != "plain" else None
    read = READS[summary.prompt], number(summary.counts["prompt_tokens"], 0)
    return [*read, *_spread(summary.spread()), *_spread(decision)]


def ratios_table(group: GroupSummary) -> Table:
    """Build the table of speed-ups over the baselines."""
    caption = (
        "ttft of the baseline / ttft: median over paired steps with 95 % interval; in brackets the ratio of both p50"
    )
    return _table("times faster", caption, [f"than {base}" for base in BASELINES], group, _ratios)


def _ratios(summary: ContenderSummary) -> Cells:
    return [_ratio(summary.ratios[base]) for base in BASELINES]


def kinds_table(group: GroupSummary) -> Table:
    """Build the table of TTFT by kind of step: cold, warm, and with or without a flip."""
    caption = (
        "p50 in ms (steps); cold: first step after a reset, warm: all others; flip: a group became static or dynamic; "
        "overlapped: all steps, without encoding that can run while the robot moves"
    )
    names = [KIND_NAMES.get(kind, kind) for kind in KINDS]
    return _table("ttft by kind of step", caption, (*names, "overlapped"), group, _kinds)


def _kinds(summary: ContenderSummary) -> Cells:
    cells = (_p50_and_count(summary.spread(kind=kind)) for kind in KINDS)
    return [*cells, number(summary.spread("ttft_overlapped_ms").p50, 1)]


def parts_table(group: GroupSummary) -> Table:
    """Build the table of the parts of a step; the planner's part excludes the sentence encoder."""
    caption = "p50 in ms, all steps; planner: update + retrieve + ask, without model and sentence encoder"
    return _table("parts of a step", caption, ("planner", *PARTS, "score"), group, _parts)


def _parts(summary: ContenderSummary) -> Cells:
    if summary.prompt == "plain":
        return [MISSING] * (len(PARTS) + 2)
    parts = (number(summary.parts[part], 2) for part in PARTS)
    return [number(summary.overhead, 2), *parts, number(summary.spread("score_ms").p50, 2)]


def floor_table(group: GroupSummary) -> Table:
    """Build the table of work, multiples of the floor, and memory."""
    caption = (
        "computed: share of the prompt's rows x layers; encoded: rows per step; floor: least time for the work "
        "of the method at the machine's rates, p50; x floor: ttft / floor; x rows: ttft / time of its rows through "
        f"whole layers, no flip; peak: growth of memory within a step, MiB. {_rates(group)}"
    )
    floor = "floor ms", "x floor, no flip", "x floor, all", "x rows"
    headings = ("computed %", "encoded", *floor, "peak", "cold peak", "stored MiB")
    return _table("work and memory", caption, headings, group, _floor)


def _floor(summary: ContenderSummary) -> Cells:
    no_flip, overall = summary.floor["no_flip"], summary.floor["all"]
    work = number(100 * summary.computed_ratio, 1), number(summary.encoded_rows, 0), number(overall.ms, 1)
    multiples = [MISSING if distance is None else f"{distance.times:.2f}" for distance in (no_flip, overall)]
    rows = MISSING if no_flip is None else f"{no_flip.of_rows:.2f}"
    return [*work, *multiples, rows, *(_mib(size) for size in (summary.peak, summary.peak_cold, summary.stored))]


def growth_table(group: GroupSummary) -> Table | None:
    """Build the table of the cost of one more segment; None for a single size."""
    growths = {name: growth for name, growth in group.growth.items() if growth is not None}
    if not growths:
        return None
    caption = "ttft = a + b n + c n² for n segments, fitted to the p50 of warm steps; error: largest error of the fit"
    table = Table(title=f"growth of ttft: {group.title}", caption=caption)
    ends = f"ms per segment at {GROWTH_AT}", "quadratic % at the end", "error %"
    for heading in ("", "segments", "a ms", "b ms", "c µs", *ends):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, growth in growths.items():
        coefficients = number(growth.fixed, 2), number(growth.linear, 3), number(1e3 * growth.quadratic, 2)
        shares = number(100 * growth.curved(growth.high), 1), number(100 * growth.error, 1)
        slope = number(growth.slope(GROWTH_AT), 3)
        table.add_row(name, f"{growth.low}–{growth.high}", *coefficients, slope, *shares)
    return table


def refusal_table(group: GroupSummary) -> Table | None:
    """Build the table of cells and contenders that could not run; None if all did."""
    rows = [(cell.cell.segments, "all", cell.refusal) for cell in group.cells if cell.refusal]
    rows += [
        (c.cell.segments, contender.name, contender.refusal)
        for c in group.cells
        for contender in c.standings
        if contender.refusal
    ]
    if not rows:
        return None
    table = Table(title=f"refused: {group.title}")
    for heading in ("segments", "", "reason"):
        table.add_column(heading, overflow="fold")
    for segments, name, reason in rows:
        table.add_row(str(segments), name, reason)
    return table


def _table(
    title: str,
    caption: str,
    headings: Sequence[str],
    group: GroupSummary,
    cells_of: Callable[[ContenderSummary], Cells],
) -> Table:
    """Build a table with a row for every contender that ran, cell by cell."""
    table = Table(title=f"{title}: {group.title}", caption=caption)
    table.add_column("segments", justify="right", no_wrap=True)
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for cell in group.cells:
        summaries = [summary for summary in cell.standings if summary.times is not None]
        for place, summary in enumerate(summaries):
            table.add_row("" if place else str(cell.cell.segments), summary.name, *cells_of(summary))
        table.add_section()
    return table


def _spread(spread: Spread | None) -> Cells:
    """Format the median, its interval, and the 95th percentile."""
    if spread is None:
        return [MISSING] * 3
    return [number(spread.p50, 1), bounds(spread.interval, digits=1).strip() or MISSING, number(spread.p95, 1)]


def _p50_and_count(spread: Spread | None) -> str:
    return MISSING if spread is None else f"{number(spread.p50, 1)} ({spread.count})"


def _ratio(ratio: Ratio | None) -> str:
    return MISSING if ratio is None else f"{ratio.paired:.2f}{bounds(ratio.interval)} ({ratio.medians:.2f})"


def _mib(size: int | None) -> str:
    return MISSING if size is None else number(size / MIB, 1)


def _rates(group: GroupSummary) -> str:
    """Name the median rates of the cells."""
    known = [cell.rates for cell in group.cells if cell.rates is not None]
    if not known:
        return ""
    rates = Rates.median(known)
    link = "" if rates.link is None else f", {rates.link / 1e9:.1f} GB/s from the host"
    return f"This machine: {rates.flops / 1e12:.3g} TFLOP/s, {rates.bandwidth / 1e9:.3g} GB/s{link}"
