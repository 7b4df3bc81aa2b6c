"""Paired comparison of runs: ``python -m eval.compare outputs/...`` (run folders, or folders that contain them).

Only tasks played by all runs count. Intervals are 95 % intervals with trials (or task streams) as clusters, see
docs/evaluation.md#intervals. "12+ 9-" means that 12 tasks are better than in the baseline run, and 9 worse.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.common import metrics, tables
from eval.common.intervals import Difference, Interval, paired_difference, ratio_interval
from eval.common.options import command_parser
from eval.common.resume import flatten
from eval.common.tables import Column, bounds, number, percent
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, DataError, check_once
from keep_agent.guard import guarded
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.run_folder import RunFolder, find_runs, read_config
from memory.files.atomic import write_atomic

BASELINE = "full_recompute"
# Settings that must be equal in a fair comparison: EQUAL_KEYS in all runs, EQUAL_MEMORY_KEYS in all runs with a memory.
EQUAL_KEYS = ("env.", "model.", "prompt.", "eval.seed", "eval.threads", "eval.workers", "eval.launcher")
EQUAL_MEMORY_KEYS = ("memory.grouping.", "engine.", "weights")
IGNORED_KEYS = ("env.record",)  # a recording does not change the run
LENGTH_EDGES = (0, 250, 500, 750, 1000, 1500, 2000, math.inf)
KV = ("prefix_hit_rate", "peak_request_tokens", "peak_live_tokens", "raw_kv_reads", "live_kv_reads")
Steps = Sequence[tuple[str, StepNumbers]]  # pairs of a step's cluster and the step


@dataclass(frozen=True)
class Run:
    name: str
    path: Path
    config: dict[str, Any]
    episodes: dict[str, EpisodeResult]  # by episode id

    @property
    def planner(self) -> str:
        return self.config["planner"]["name"]


@dataclass(frozen=True)
class Row:
    """Numbers of one run, defined in docs/evaluation.md. Rates are fractions; TTFT ratios are this run / baseline."""

    run: str
    tasks: int
    episodes: int
    crashed: int  # crashed episodes, whose tasks count as failed
    success_rate: float
    success_interval: Interval
    success_difference: Difference | None
    goal_condition_rate: float
    subgoal_success_rate: float
    subgoal_difference: Difference | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_ratio: float | None
    ttft_ratio_interval: Interval
    decision_p50_ms: float | None
    computed_ratio: float | None
    recomputed_ratio: float | None
    kv_hit_rate: float | None
    prefix_hit_rate: float | None
    peak_request_tokens: int | None
    peak_live_tokens: int | None
    raw_kv_reads: float | None
    live_kv_reads: float | None
    seconds: float


@dataclass(frozen=True)
class LengthBin:
    """Steps of one run with prompts of ``low <= tokens < high``, compared with the baseline's steps of this range."""

    run: str
    low: float
    high: float
    steps: int
    ttft_p50_ms: float
    computed_ratio: float
    ttft_ratio: float | None
    ttft_ratio_interval: Interval


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Load the runs at or below the paths, each once, with distinct names."""
    folders, runs = list(dict.fromkeys(folder.resolve() for path in paths for folder in find_runs(path))), []
    for folder in folders:
        config, results = read_config(folder, ["planner.name"]), RunFolder.read(folder)
        check_once([result.id for result in results], f"{folder}: episode", "play it again on data with distinct ids")
        runs.append(Run("", folder, config, {result.id: result for result in results}))
    names = distinct_names([run.planner for run in runs], folders)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def distinct_names(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return distinct names: to a repeated name add the run's folder, relative to the common parent of all runs."""
    shared = Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
    return [
        name if names.count(name) == 1 else f"{name} ({folder.relative_to(shared)})"
        for name, folder in zip(names, folders, strict=True)
    ]


def with_common_episodes(runs: Sequence[Run]) -> list[Run]:
    """Keep the episodes that all runs have. Raises DataError if there are none."""
    common = set.intersection(*(set(run.episodes) for run in runs))
    if not common:
        raise DataError(f"{', '.join(run.name for run in runs)} have no episode in common; compare runs of one setting")
    order = [key for key in runs[0].episodes if key in common]
    return [replace(run, episodes={key: run.episodes[key] for key in order}) for run in runs]


def setting_differences(runs: Sequence[Run]) -> list[str]:
    """List the settings, other than the method's, in which runs differ; and the machines, if times are from several."""
    remembering = [run.config for run in runs if "memory" in run.config]
    keys = unequal_settings(EQUAL_KEYS, [run.config for run in runs]) | unequal_settings(EQUAL_MEMORY_KEYS, remembering)
    timed = sorted({result.timed_on for run in runs for result in run.episodes.values()} - {""})
    return [*sorted(keys), *([f"machines that measured the times ({' | '.join(timed)})"] if timed[1:] else [])]


def unequal_note(keys: Sequence[str]) -> list[Text]:
    """Build the note that names unequal settings; empty if there are none."""
    note = f" these runs differ in more than their method: {', '.join(keys)}"
    return [Text.assemble(("note:", "yellow"), note)] if keys else []


def unequal_settings(prefixes: tuple[str, ...], configs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys that begin with one of ``prefixes`` and differ between ``configs``."""
    flat = [
        {key: value for key, value in flatten(config).items() if key.startswith(prefixes) and key not in IGNORED_KEYS}
        for config in configs
    ]
    return {key for key in set().union(*flat) if len({json.dumps(values.get(key)) for values in flat}) > 1}


def _steps(run: Run, low: float = 0, high: float = math.inf) -> Steps:
    """Return the steps at which a model ran with a prompt of ``low <= tokens < high``."""
    pairs = ((metrics.cluster_of(result), step) for result in run.episodes.values() for step in result.steps)
    return [(cluster, step) for cluster, step in pairs if step.layers and low <= step.request_tokens < high]


def _ratio(steps: Steps, base: Steps) -> tuple[float | None, Interval]:
    """Return the ratio of the median TTFTs, ``steps`` / ``base``, over their common clusters, and its interval."""
    top, bottom = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for times, pairs in ((top, steps), (bottom, base)):
        for cluster, step in pairs:
            times[cluster].append(step.ttft_ms)
    common = top.keys() & bottom.keys()
    above, below = (
        statistics.median([ms for key in common for ms in times[key]]) if common else None for times in (top, bottom)
    )
    return (above / below, ratio_interval(top, bottom)) if above and below else (None, None)


def difference_of(
    run: Run, base: Run, rate: Callable[[Sequence[TaskOutcome]], float] = metrics.success_rate
) -> Difference | None:
    """Return the paired difference of a rate over tasks: run - base."""
    samples: dict[str, list[float]] = defaultdict(list)
    for key, result in run.episodes.items():
        pairs = zip(result.tasks, base.episodes[key].tasks, strict=True)
        samples[metrics.cluster_of(result)] += [rate([task]) - rate([base_task]) for task, base_task in pairs]
    return paired_difference(samples)


def compare(run: Run, base: Run) -> Row:
    cost = metrics.costs([step for _, step in _steps(run)])
    success = None if run is base else difference_of(run, base)
    subgoals = None if run is base else difference_of(run, base, metrics.subgoal_success_rate)
    ratio, ratio_bounds = (None, None) if run is base else _ratio(_steps(run), _steps(base))
    ttft, decision = cost["ttft_ms"] or {}, cost["decision_ms"] or {}
    tasks = [task for result in run.episodes.values() for task in result.tasks]
    return Row(
        run.name, len(tasks), len(run.episodes), sum(result.crashed for result in run.episodes.values()),
        metrics.success_rate(tasks), metrics.success_interval([*run.episodes.values()]), success,
        metrics.goal_condition_rate(tasks), metrics.subgoal_success_rate(tasks), subgoals,
        ttft.get("p50"), ttft.get("p95"), ratio, ratio_bounds,
        decision.get("p50"), cost["computed_ratio"], cost["recomputed_ratio"], cost["kv_hit_rate"],
        **{key: cost[key] for key in KV},
        seconds=sum(result.seconds for result in run.episodes.values()),
    )  # fmt: skip


def by_length(run: Run, base: Run, edges: Sequence[float] = LENGTH_EDGES) -> list[LengthBin]:
    """Compare the steps in bins of prompt length."""
    cells = []
    for low, high in pairwise(edges):
        if pairs := _steps(run, low, high):
            steps = [step for _, step in pairs]
            median, computed = statistics.median(s.ttft_ms for s in steps), metrics.costs(steps)["computed_ratio"]
            ratio = (None, None) if run is base else _ratio(pairs, _steps(base, low, high))
            cells.append(LengthBin(run.name, low, high, len(steps), median, computed, *ratio))
    return cells


def choose_baseline(runs: Sequence[Run], name: str | None) -> Run:
    """Return the run called ``name``, or the only run of planner ``name``; by default `BASELINE` or the first run."""
    same_name = [run for run in runs if run.name == name]
    candidates = same_name or [run for run in runs if run.planner == (name or BASELINE)]
    if name and len(candidates) != 1:
        problem = "no run is" if not candidates else "several runs are"
        raise ConfigError(f"{problem} called {name!r}; choose one of: {', '.join(run.name for run in runs)}")
    return candidates[0] if candidates else runs[0]


OUTCOME: tuple[Column, ...] = (
    ("success %", lambda row: tables.share(row.success_rate, row.success_interval)),
    ("difference", lambda row: tables.points(row.success_difference)),
    ("pairs", lambda row: tables.pairs(row.success_difference)),
)
SUBGOALS: tuple[Column, ...] = (
    ("sub-goals %", lambda row: percent(row.subgoal_success_rate)),
    ("difference", lambda row: tables.difference(row.subgoal_difference)),
)
SHARES: tuple[Column, ...] = (
    ("computed", lambda row: number(row.computed_ratio, 2)),
    ("recomputed", lambda row: number(row.recomputed_ratio, 2)),
    ("hits", lambda row: number(row.kv_hit_rate, 2)),
)
NAME: Column = ("run", lambda row: row.run)
COLUMNS: tuple[Column, ...] = (
    NAME,
    *OUTCOME,
    ("goals %", lambda row: percent(row.goal_condition_rate)),
    *SUBGOALS,
    ("ttft ms", lambda row: number(row.ttft_p50_ms, 1)),
    ("p95", lambda row: number(row.ttft_p95_ms, 1)),
    ("ratio", lambda row: number(row.ttft_ratio) + bounds(row.ttft_ratio_interval)),
    ("decision", lambda row: number(row.decision_p50_ms, 1)),
    *SHARES,
)
KV_COLUMNS: tuple[Column, ...] = (
    NAME,
    ("prefix hits", lambda row: number(row.prefix_hit_rate, 2)),
    ("peak request", lambda row: number(row.peak_request_tokens, 0)),
    ("peak live", lambda row: number(row.peak_live_tokens, 0)),
    ("raw reads", lambda row: number(row.raw_kv_reads, 0)),
    ("live reads", lambda row: number(row.live_kv_reads, 0)),
    ("wall s", lambda row: number(row.seconds, 0)),
)
LENGTH_COLUMNS: tuple[Column, ...] = (
    ("prompt tokens", lambda c: f"{c.low:.0f}+" if math.isinf(c.high) else f"{c.low:.0f}–{c.high - 1:.0f}"),
    NAME,
    ("steps", lambda cell: str(cell.steps)),
    ("ttft p50 ms", lambda cell: number(cell.ttft_p50_ms, 1)),
    ("ttft ratio", lambda cell: number(cell.ttft_ratio) + bounds(cell.ttft_ratio_interval)),
    ("computed", lambda cell: number(cell.computed_ratio)),
)


def kv_table(rows: Sequence[Row]) -> Table:
    return tables.make_table("keys and values in tokens; reads: mean per decision", rows, KV_COLUMNS)


def length_table(cells: Sequence[LengthBin]) -> Table:
    return tables.make_table("by prompt length", sorted(cells, key=lambda cell: cell.low), LENGTH_COLUMNS)


def report(arguments: argparse.Namespace, console: Console) -> None:
    runs = with_common_episodes(load_runs(arguments.runs))
    base = choose_baseline(runs, arguments.baseline)
    unequal = setting_differences(runs)
    rows = [compare(run, base) for run in runs]
    cells = [cell for run in runs for cell in by_length(run, base)]
    caption = tables.crashes((row.run, row.crashed, row.episodes) for row in rows) or None
    title = f"{rows[0].tasks} paired tasks; median times; differences and ratios to {base.name}"
    outcomes = tables.make_table(title, rows, COLUMNS, caption)
    for table in (outcomes, *([kv_table(rows), length_table(cells)] if cells else [])):
        tables.show(table, arguments.markdown, console)
    for note in unequal_note(unequal):
        console.print(note)
    if arguments.json:
        lengths = [asdict(cell) | {"high": None if math.isinf(cell.high) else cell.high} for cell in cells]
        record = {"baseline": base.name, "runs": [asdict(row) for row in rows], "by_length": lengths}
        write_atomic(arguments.json, json.dumps(record | {"unequal_settings": unequal}, indent=2) + "\n")


def main() -> None:
    p = command_parser(__doc__, "keep-eval-compare")
    p.add_argument("runs", nargs="+", type=Path, help="run folders, or folders that contain run folders")
    p.add_argument("--baseline", help=f"name of the run to compare with (default: {BASELINE}, else the first run)")
    p.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to FILE")
    arguments = p.parse_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
