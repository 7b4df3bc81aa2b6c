"""Tables, and texts of their cells: numbers, percentages, missing values and intervals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eval.common.intervals import Difference, is_wide
from keep_agent.console import make_console

Column = tuple[str, Callable[[Any], str]]  # heading, and function from a row to its cell's text
MISSING = "–"
COSTS = ("prompt_tokens", "fresh_tokens", "computed_ratio", "recomputed_ratio", "kv_hit_rate")
TIMES = ("ttft_overlapped_ms", "decision_ms", "score_ms")
SPREAD = ("p50", "p95", "mean")  # keys of `eval.common.metrics.spread`
OUTCOMES = {  # headings by key
    "success_rate": "success %", "goal_condition_rate": "goals %", "subgoal_success_rate": "sub-goals %",
    "path_weighted_success": "path-w. %",
}  # fmt: skip


def markdown(table: Table) -> str:
    """Return the table in Markdown, with its title above and its caption below."""
    plain = copy(table)
    plain.title, plain.caption, plain.box = None, None, box.MARKDOWN
    console = make_console(1000, color_system=None)
    with console.capture() as output:
        console.print(plain)
    lines = [line.strip() for line in output.get().splitlines() if line.strip()]
    head, rule, *rows = (re.sub(" {2,}", " ", line) for line in lines)
    rows = [row for row in rows if row != rule]  # Markdown tables have no sections
    return "\n".join([f"{table.title}", "", head, rule, *rows, *(["", f"{table.caption}"] if table.caption else [])])


def show(table: Table, plain: bool, console: Console) -> None:
    """Print the table; ``plain``: in Markdown, without wrapping lines."""
    if plain:
        console.print(f"{markdown(table)}\n", highlight=False, soft_wrap=True)
    else:
        console.print(table)


def make_table(
    title: str, rows: Iterable[Any], columns: Sequence[Column], caption: str | None = None, wrap: bool = False
) -> Table:
    """Build a table of ``rows``; the first column is aligned left, the others right; ``wrap`` wraps headings."""
    first, *headings = (heading for heading, _ in columns)
    return table_of(title, [first], headings, ([text(row) for _, text in columns] for row in rows), caption, wrap)


def table_of(
    title: str, names: Sequence[str], values: Sequence[str], rows: Iterable[Sequence[str] | None],
    caption: str | None = None, wrap: bool = False,
) -> Table:  # fmt: skip
    """Build a table with headings ``names`` (aligned left) and ``values`` (right); None in ``rows`` ends a section."""
    table = Table(title=title, caption=caption)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in values:
        table.add_column(heading, justify="right", no_wrap=not wrap)
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    return table


def number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{100 * value:{sign}.1f}"


def bounds(interval: tuple[float, float] | None, scale: float = 1.0, digits: int = 2) -> str:
    """Format an interval as `` [low, high]``; empty for None."""
    return "" if interval is None else f" [{scale * interval[0]:.{digits}f}, {scale * interval[1]:.{digits}f}]"


def points(difference: Difference | None) -> str:
    """Format a difference in percentage points with its interval."""
    return MISSING if difference is None else percent(difference.mean, "+") + bounds(difference.interval, 100, 1)


def pairs(difference: Difference | None) -> str:
    """Format the numbers of better (+) and worse (-) pairs, with a note if there are too few pairs."""
    if difference is None:
        return MISSING
    more, fewer = difference.more, difference.fewer
    counts = f"{more}+ {fewer}-" if more or fewer else f"0 of {difference.pairs} differ"
    return f"{counts}; too few to tell" if difference.unclear else counts


def share(value: float | None, interval: tuple[float, float] | None) -> str:
    """Format a share in % with its interval."""
    return percent(value) + bounds(interval, 100, 1)


def difference(value: Difference | None) -> str:
    """Format a difference as `points` and `pairs` in one cell."""
    return MISSING if value is None else f"{points(value)} ({pairs(value)})"


def crashes(runs: Iterable[tuple[str, int, int]]) -> str:
    """Name the runs with crashes, or return ""; ``runs`` are (name, crashed episodes, all episodes)."""
    parts = [f"{name} in {crashed} of {episodes} episodes" for name, crashed, episodes in runs if crashed]
    return f"crashed, which counts as failed: {', '.join(parts)}" if parts else ""


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    def row(name: str, rates: Mapping[str, Any]) -> list[str]:
        return [name, str(rates["tasks"]), *(percent(rates[key]) for key in OUTCOMES)]

    types = (row(name, rates) for name, rates in summary["per_task_type"].items())
    interval, restarted, episodes = (summary[k] for k in ("success_interval", "restarted_episodes", "episodes"))
    unclear = ", too few tasks to tell" if is_wide(interval) else ""
    caption = f"95 % interval of success:{bounds(interval, 100, 1) or ' none'}{unclear}"
    if summary["crashed"]:
        caption += f"; {summary['crashed']} of {episodes} episodes crashed, which counts as failed"
    if restarted:
        caption += f"; the simulator was restarted in {restarted} of {episodes} episodes"
    rows = [*types, None, row("all", summary)]
    return table_of(title, ["task type"], ["tasks", *OUTCOMES.values()], rows, caption)


def cost_table(summary: Mapping[str, Any], title: str = "cost of a decision") -> Table | None:
    """Build the table of a run's times and token counts; None if no model ran."""
    if summary["ttft_ms"] is None:
        return None
    parts = {f"  {name}": spread for name, spread in summary["ttft_parts_ms"].items()}
    spreads = {"ttft_ms": summary["ttft_ms"], **parts, **{name: summary[name] for name in TIMES}}
    times = ([name, *(number(spread[key], 2) for key in SPREAD)] for name, spread in spreads.items())
    rows = ([name, "", "", number(summary[name], 1 if name.endswith("tokens") else 3)] for name in COSTS)
    return table_of(title, [""], SPREAD, [*times, None, *rows])
