"""Tables of a run: times, speed-ups, parts of a step, floor, growth, and refused contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from eval.common.tables import MISSING, bounds, number
from eval.latency.machine import Rates
from eval.latency.report.summary import BASELINES, STEP_KINDS, ContenderSummary, GroupSummary, Spread
from keep_agent.rollout.results import PARTS

READS = {"memory": "memory", "append": "transcript", "plain": "same prompt"}
KIND_NAMES = {"no_flip": "no flip"}
MIB = 1 << 20
GROWTH_AT = 40  # segments
Cells = Sequence[str]


def group_tables(group: GroupSummary, scored: bool) -> list[Table]:
    """Build all tables of a group of cells."""
    note = "decision: ttft and scoring" if scored else "no candidates were scored, so decision = ttft"
    kinds = [KIND_NAMES.get(kind, kind) for kind in STEP_KINDS]
    contents: Sequence[tuple[str, str, Sequence[str], Callable[[ContenderSummary], Cells]]] = (
        ("time to the first token", f"ms, all steps; {note}", TIMES, _times),
        ("times faster", RATIOS_CAPTION, [f"than {base}" for base in BASELINES], _ratios),
        ("ttft by kind of step", KINDS_CAPTION, (*kinds, "overlapped"), _kinds),
        ("parts of a step", PARTS_CAPTION, ("planner", *PARTS, "score"), _parts),
        ("work and memory", f"{WORK_CAPTION} {_rates(group)}", WORK, _work),
    )
    tables = [_table(*content, group) for content in contents]
    more = growth_table(group), refusal_table(group)
    return [table for table in (*tables, *more) if table is not None and table.row_count]


TIMES = ("reads", "tokens", "ttft p50", "95 %", "p95", "decision p50", "95 %", "p95")
RATIOS_CAPTION = (
    "ttft of the baseline / ttft: median over paired steps with 95 % interval; in brackets the ratio of both p50"
)
KINDS_CAPTION = (
    "p50 in ms, in brackets the number of steps; cold: first step after a reset, warm: all others; "
    "flip: a group became static or dynamic; overlapped: all steps, without encoding that can run while the robot moves"
)
PARTS_CAPTION = "p50 in ms, all steps; planner: update + retrieve + ask, without model and sentence encoder"
WORK = (
    "computed %", "encoded", "floor ms", "x floor, no flip", "x floor, all", "x rows", "peak", "cold peak",
    "stored MiB",
)  # fmt: skip
WORK_CAPTION = (
    "computed: share of the prompt's rows x layers; encoded: rows per step; floor: least time for the work of the "
    "method at the machine's rates, p50; x floor: ttft / floor; x rows: ttft / least time if every computed row "
    "went through whole layers, no flip; peak: growth of memory within a step, MiB."
)


def _times(summary: ContenderSummary) -> Cells:
    decision = summary.spread("decision_ms") if summary.prompt != "plain" else None
    read = READS[summary.prompt], number(summary.counts["prompt_tokens"], 0)
    return [*read, *_spread(summary.spread()), *_spread(decision)]


def _ratios(summary: ContenderSummary) -> Cells:
    ratios = (summary.ratios[base] for base in BASELINES)
    return [f"{r.paired:.2f}{bounds(r.interval)} ({r.medians:.2f})" if r else MISSING for r in ratios]


def _kinds(summary: ContenderSummary) -> Cells:
    spreads = (summary.spread(kind=kind) for kind in STEP_KINDS)
    cells = (f"{number(spread.p50, 1)} ({spread.count})" if spread else MISSING for spread in spreads)
    return [*cells, number(summary.spread("ttft_overlapped_ms").p50, 1)]


def _parts(summary: ContenderSummary) -> Cells:
    if summary.prompt == "plain":
        return [MISSING] * (len(PARTS) + 2)
    parts = (number(summary.parts[part], 2) for part in PARTS)
    return [number(summary.overhead, 2), *parts, number(summary.spread("score_ms").p50, 2)]


def _work(summary: ContenderSummary) -> Cells:
    no_flip, overall = summary.floor["no_flip"], summary.floor["all"]
    work = number(100 * summary.computed_ratio, 1), number(summary.encoded_rows, 0), number(overall.ms, 1)
    multiples = no_flip and no_flip.times, overall.times, no_flip and no_flip.of_rows
    sizes = (size and size / MIB for size in (summary.peak, summary.peak_cold, summary.stored))
    texts = (MISSING if multiple is None else f"{multiple:.2f}" for multiple in multiples)
    return [*work, *texts, *(number(size, 1) for size in sizes)]


def growth_table(group: GroupSummary) -> Table | None:
    """Build the table of the cost of one more segment; None for a single size."""
    growths = {name: growth for name, growth in group.growth.items() if growth is not None}
    if not growths:
        return None
    caption = "ttft = a + b n + c n² for n segments, fitted to the p50 of warm steps; error: largest error of the fit"
    table = Table(title=f"growth of ttft: {group.title}", caption=caption)
    ends = f"ms per segment at {GROWTH_AT}", "c n² % at largest n", "error %"
    for heading in ("", "segments", "a ms", "b ms", "c µs", *ends):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, growth in growths.items():
        coefficients = number(growth.fixed, 2), number(growth.linear, 3), number(1e3 * growth.quadratic, 2)
        shares = number(100 * growth.curved(growth.high), 1), number(100 * growth.error, 1)
        slope = number(growth.slope(GROWTH_AT), 3)
        table.add_row(name, f"{growth.low}–{growth.high}", *coefficients, slope, *shares)
    return table


def refusal_table(group: GroupSummary) -> Table | None:
    """Build the table of cells and contenders that could not run; None if all ran."""
    rows = [(cell, "all", cell.refusal) for cell in group.cells]
    rows += [(cell, contender.name, contender.refusal) for cell in group.cells for contender in cell.summaries]
    if not any(reason for *_, reason in rows):
        return None
    table = Table(title=f"refused: {group.title}")
    for heading in ("segments", "", "reason"):
        table.add_column(heading, overflow="fold")
    for cell, name, reason in rows:
        if reason:
            table.add_row(str(cell.cell.segments), name, reason)
    return table


def _table(
    title: str, caption: str, headings: Sequence[str], cells_of: Callable[[ContenderSummary], Cells],
    group: GroupSummary,
) -> Table:  # fmt: skip
    """Build a table with a row for every contender that ran, cell by cell."""
    table = Table(title=f"{title}: {group.title}", caption=caption)
    table.add_column("segments", justify="right", no_wrap=True)
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for cell in group.cells:
        summaries = [summary for summary in cell.summaries if summary.times is not None]
        for place, summary in enumerate(summaries):
            table.add_row("" if place else str(cell.cell.segments), summary.name, *cells_of(summary))
        table.add_section()
    return table


def _spread(spread: Spread | None) -> Cells:
    if spread is None:
        return [MISSING] * 3
    return [number(spread.p50, 1), bounds(spread.interval, digits=1).strip() or MISSING, number(spread.p95, 1)]


def _rates(group: GroupSummary) -> str:
    known = [cell.rates for cell in group.cells if cell.rates is not None]
    if not known:
        return ""
    rates = Rates.median(known)
    link = "" if rates.link is None else f", {rates.link / 1e9:.1f} GB/s from the host"
    return f"This machine: {rates.flops / 1e12:.3g} TFLOP/s, {rates.bandwidth / 1e9:.3g} GB/s{link}"
