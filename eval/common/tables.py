"""Cells of tables: one place for digits, percentages, missing values and intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eval.common.intervals import Difference, is_wide
from keep_agent.console import make_console

MISSING = "–"
COSTS = ("prompt_tokens", "fresh_tokens", "computed_ratio", "recomputed_ratio", "kv_hit_rate")
TIMES = ("ttft_ms", "ttft_overlapped_ms", "decision_ms", "score_ms")


def markdown(table: Table) -> str:
    """The table in Markdown between its title and its caption, for documents."""
    plain = copy(table)
    plain.title, plain.caption, plain.box = None, None, box.MARKDOWN
    console = make_console(1000, color_system=None)
    with console.capture() as written:
        console.print(plain)
    lines = [line.strip() for line in written.get().splitlines() if line.strip()]
    head, rule, *rows = (re.sub(" {2,}", " ", line) for line in lines)
    rows = [row for row in rows if row != rule]  # Markdown has no sections
    return "\n".join([f"{table.title}", "", head, rule, *rows, *(["", f"{table.caption}"] if table.caption else [])])


def show(table: Table, plain: bool, console: Console) -> None:
    """On the console as it is, or ``plain``: in Markdown, its lines uncut."""
    if plain:
        console.print(f"{markdown(table)}\n", highlight=False, soft_wrap=True)
    else:
        console.print(table)


def number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, sign: str = "") -> str:
    return MISSING if value is None else f"{100 * value:{sign}.1f}"


def bounds(interval: tuple[float, float] | None, scale: float = 1.0, digits: int = 2) -> str:
    """`` [low, high]``, or nothing."""
    return "" if interval is None else f" [{scale * interval[0]:.{digits}f}, {scale * interval[1]:.{digits}f}]"


def points(found: Difference | None) -> str:
    """A difference in points, with its interval."""
    return MISSING if found is None else percent(found.mean, "+") + bounds(found.interval, 100, 1)


def pairs(found: Difference | None) -> str:
    """How many pairs went better and worse; whether they are too few to tell."""
    if found is None:
        return MISSING
    counts = f"{found.more}+ {found.fewer}-" if found.more or found.fewer else f"0 of {found.pairs} differ"
    return f"{counts}; too few to tell" if found.unclear else counts


def share(value: float | None, interval: tuple[float, float] | None) -> str:
    """A share in %, with its interval."""
    return percent(value) + bounds(interval, 100, 1)


def difference(found: Difference | None) -> str:
    """Points and pairs in one cell."""
    return MISSING if found is None else f"{points(found)} ({pairs(found)})"


def crashes(runs: Iterable[tuple[str, int, int]]) -> str:
    """Which of the runs, given with their crashed and all episodes, crashed how often; empty if none did."""
    told = [f"{name} in {crashed} of {episodes} episodes" for name, crashed, episodes in runs if crashed]
    return f"crashed, which counts as failed: {', '.join(told)}" if told else ""


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    """Outcome by task type, then what a decision cost, for one run."""
    table = Table(title=title, caption=_caption(summary))
    table.add_column("task type", no_wrap=True)
    for heading in ("tasks", "success %", "goals %", "sub-goals %", "path-w. %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rates in [*summary["per_task_type"].items(), ("all", summary)]:
        if name == "all":
            table.add_section()
        table.add_row(
            name,
            str(rates["tasks"]),
            percent(rates["success_rate"]),
            percent(rates["goal_condition_rate"]),
            percent(rates["subgoal_success_rate"]),
            percent(rates["path_weighted_success"]),
        )
    return table


def _caption(summary: Mapping[str, Any]) -> str:
    interval, restarted = summary["success_interval"], summary["restarted_episodes"]
    unclear = ", too few tasks to tell" if is_wide(interval) else ""
    said = [f"95 % interval of success:{bounds(interval, 100, 1) or ' none'}{unclear}"]
    if summary["crashed"]:
        said.append(f"{summary['crashed']} of {summary['episodes']} episodes crashed, which counts as failed")
    if restarted:
        said.append(f"the simulator was restarted in {restarted} of {summary['episodes']} episodes")
    return "; ".join(said)


def cost_table(summary: Mapping[str, Any], title: str = "cost of a decision") -> Table | None:
    """Times and rows of a run; None when no model was asked."""
    if summary["ttft_ms"] is None:
        return None
    table = Table(title=title)
    table.add_column("")
    for heading in ("p50", "p95", "mean"):
        table.add_column(heading, justify="right")
    parts = {f"  {name}": spread for name, spread in summary["ttft_parts_ms"].items()}
    for name, spread in {"ttft_ms": summary["ttft_ms"], **parts, **{t: summary[t] for t in TIMES[1:]}}.items():
        table.add_row(name, *(number(spread[key], 2) for key in ("p50", "p95", "mean")))
    table.add_section()
    for name in COSTS:
        table.add_row(name, "", "", number(summary[name], 1 if name.endswith("tokens") else 3))
    return table
