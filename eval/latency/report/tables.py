"""What a run shows: times, where they go, distance to the floor, growth, and what was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from eval.common.tables import MISSING, bounds, number
from eval.latency.rates import Rates
from eval.latency.report.statistics import Ratio, Spread
from eval.latency.report.summary import BASELINES, KINDS, ContenderSummary, GroupSummary
from keep_agent.rollout.results import PARTS

READS = {"memory": "memory", "append": "transcript", "plain": "same prompt"}
KIND_NAMES = {"no_flip": "no flip"}
MIB = 1 << 20
GROWTH_AT = 40  # segments
Cells = Sequence[str]


def group_tables(group: GroupSummary, scored: bool) -> list[Table]:
    """All that is known of a group of cells."""
    ran = [times_table(group, scored), ratios_table(group), kinds_table(group), parts_table(group), floor_table(group)]
    others = growth_table(group), refused_table(group)
    return [table for table in (*ran, *others) if table is not None and table.row_count]


def times_table(group: GroupSummary, scored: bool) -> Table:
    """Time to the first token and to the decision, over all steps."""
    headings = ("reads", "tokens", "ttft p50", "95 %", "p95", "decision p50", "95 %", "p95")
    note = "decision: ttft and scoring" if scored else "no candidates were scored: decision ends with the prompt"
    return _table("time to the first token", f"ms, all steps; {note}", headings, group, _times)


def _times(standing: ContenderSummary) -> Cells:
    decision = standing.spread("decision_ms") if standing.prompt != "plain" else None
    read = READS[standing.prompt], number(standing.counts["prompt_tokens"], 0)
    return [*read, *_spread(standing.spread()), *_spread(decision)]


def ratios_table(group: GroupSummary) -> Table:
    """How many times faster a contender is than those that others are compared with."""
    caption = "ttft of base / own: median over paired steps with its 95 % interval; in brackets the ratio of both p50"
    return _table("times faster", caption, [f"than {base}" for base in BASELINES], group, _ratios)


def _ratios(standing: ContenderSummary) -> Cells:
    return [_ratio(standing.ratios[base]) for base in BASELINES]


def kinds_table(group: GroupSummary) -> Table:
    """Cold steps and those in which a group flipped its kind, apart."""
    caption = (
        "p50 in ms (steps); cold: the first after a reset, warm: all others; flip: a group became static, or is so no "
        "longer; overlapped: all, without what could be encoded while the robot moved"
    )
    names = [KIND_NAMES.get(kind, kind) for kind in KINDS]
    return _table("ttft by kind of step", caption, (*names, "overlapped"), group, _kinds)


def _kinds(standing: ContenderSummary) -> Cells:
    cells = (_counted(standing.spread(kind=kind)) for kind in KINDS)
    return [*cells, number(standing.spread("ttft_overlapped_ms").p50, 1)]


def parts_table(group: GroupSummary) -> Table:
    """Where the time goes; the planner's own part is apart from the sentence encoder's."""
    caption = "p50 in ms, all steps; planner: update + retrieve + ask, outside the model and the sentence encoder"
    return _table("parts of a step", caption, ("planner", *PARTS, "score"), group, _parts)


def _parts(standing: ContenderSummary) -> Cells:
    if standing.prompt == "plain":
        return [MISSING] * (len(PARTS) + 2)
    parts = (number(standing.parts[part], 2) for part in PARTS)
    return [number(standing.overhead, 2), *parts, number(standing.spread("score_ms").p50, 2)]


def floor_table(group: GroupSummary) -> Table:
    """Work, distance to the floor, memory."""
    caption = (
        "computed: share of the prompt's rows x layers; encoded: rows per step; floor: what the method must spend "
        "at the machine's rates, p50; x rows: of what its rows cost if all went through whole layers, no flip; peak: "
        f"growth within a step, MiB. {_rates(group)}"
    )
    floor = "floor ms", "x floor, no flip", "x floor, all", "x rows"
    headings = ("computed %", "encoded", *floor, "peak", "cold peak", "stored MiB")
    return _table("work and memory", caption, headings, group, _floor)


def _floor(standing: ContenderSummary) -> Cells:
    quiet, every = standing.floor["no_flip"], standing.floor["all"]
    work = number(100 * standing.computed_ratio, 1), number(standing.encoded_rows, 0), number(every.ms, 1)
    far = [MISSING if distance is None else f"{distance.times:.2f}" for distance in (quiet, every)]
    rows = MISSING if quiet is None else f"{quiet.of_rows:.2f}"
    return [*work, *far, rows, *(_mib(size) for size in (standing.peak, standing.peak_cold, standing.stored))]


def growth_table(group: GroupSummary) -> Table | None:
    """What one more segment costs; None where there was one size only."""
    found = {name: growth for name, growth in group.growth.items() if growth is not None}
    if not found:
        return None
    caption = "ttft = a + b n + c n² of n segments, fitted to the p50 of warm steps; off: the fit's largest miss"
    table = Table(title=f"growth of ttft: {group.title}", caption=caption)
    ends = f"ms per segment at {GROWTH_AT}", "quadratic % at the end", "off by %"
    for heading in ("", "segments", "a ms", "b ms", "c µs", *ends):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, growth in found.items():
        coefficients = number(growth.fixed, 2), number(growth.linear, 3), number(1e3 * growth.quadratic, 2)
        shares = number(100 * growth.curved(growth.high), 1), number(100 * growth.error, 1)
        slope = number(growth.slope(GROWTH_AT), 3)
        table.add_row(name, f"{growth.low}–{growth.high}", *coefficients, slope, *shares)
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


def _table(
    title: str,
    caption: str,
    headings: Sequence[str],
    group: GroupSummary,
    cells_of: Callable[[ContenderSummary], Cells],
) -> Table:
    """A row for every contender that ran, cell by cell."""
    table = Table(title=f"{title}: {group.title}", caption=caption)
    table.add_column("segments", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for cell in group.cells:
        ran = [standing for standing in cell.standings if standing.times is not None]
        for place, standing in enumerate(ran):
            table.add_row("" if place else str(cell.cell.segments), standing.name, *cells_of(standing))
        table.add_section()
    return table


def _spread(spread: Spread | None) -> Cells:
    """Median, its interval, and the 95th percentile."""
    if spread is None:
        return [MISSING] * 3
    return [number(spread.p50, 1), bounds(spread.interval, digits=1).strip() or MISSING, number(spread.p95, 1)]


def _counted(spread: Spread | None) -> str:
    return MISSING if spread is None else f"{number(spread.p50, 1)} ({spread.count})"


def _ratio(ratio: Ratio | None) -> str:
    return MISSING if ratio is None else f"{ratio.paired:.2f}{bounds(ratio.interval)} ({ratio.medians:.2f})"


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
