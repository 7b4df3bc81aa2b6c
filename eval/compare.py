"""Paired comparison of runs: ``python -m eval.compare outputs/...`` (run folders, or folders that hold some).

Only tasks that every run has played count. Intervals are of 95 %, with trials (or task streams) as clusters; how they
are made: docs/evaluation.md#intervals. "12+ 9-": 12 tasks went better than with the baseline, 9 worse.
"""

from __future__ import annotations

import argparse
import json
import math
import os
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

from eval.common.intervals import Difference, Interval, paired_difference, ratio_interval
from eval.common.metrics import (
    cluster_of,
    costs,
    goal_condition_rate,
    subgoal_success_rate,
    success_interval,
    success_rate,
)
from eval.common.tables import bounds, crashes, difference, number, pairs, percent, points, share, show
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, DataError, check_once
from keep_agent.guard import guarded
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.run_folder import RunFolder, find_runs, read_config
from memory.files.atomic import write_atomic

BASELINE = "full_recompute"
# What a fair comparison shares, and what those share that have a memory.
SETTING = ("env.", "model.", "prompt.", "eval.seed", "eval.threads", "eval.workers", "eval.launcher")
MEMORY_SETTING = ("memory.grouping.", "engine.", "weights")
IGNORED_KEYS = ("env.record",)  # what a run writes changes nothing
LENGTH_EDGES = (0, 250, 500, 750, 1000, 1500, 2000, math.inf)
KV = ("prefix_hit_rate", "peak_request_tokens", "peak_live_tokens", "raw_kv_reads", "live_kv_reads")


@dataclass(frozen=True)
class Run:
    name: str
    path: Path
    config: dict[str, Any]
    episodes: dict[str, EpisodeResult]

    @property
    def planner(self) -> str:
        return self.config["planner"]["name"]


@dataclass(frozen=True)
class Row:
    """One run beside the baseline. Rates are fractions; ratios are this run / baseline."""

    run: str
    tasks: int
    episodes: int
    crashed: int  # of the episodes; their tasks count as failed
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
class Cell:
    """Steps of one run with prompts of ``low <= tokens < high``, beside the baseline's of that length."""

    run: str
    low: float
    high: float
    steps: int
    ttft_p50_ms: float
    computed_ratio: float
    ttft_ratio: float | None
    ttft_ratio_interval: Interval


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs at or below the paths, each once, under names that tell them apart."""
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in find_runs(path)))
    runs = [Run("", folder, read_config(folder, ["planner.name"]), _episodes(folder)) for folder in folders]
    names = distinct_names([run.planner for run in runs], folders)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _episodes(folder: Path) -> dict[str, EpisodeResult]:
    """By id. Raises DataError for two of one id, which nothing tells apart."""
    results = RunFolder.read(folder)
    check_once([result.id for result in results], f"{folder}: episode", "play it anew, on data that tell them apart")
    return {result.id: result for result in results}


def distinct_names(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The names of runs, with their folder (absolute) where several have the same."""
    shared = Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
    return [
        name if names.count(name) == 1 else f"{name} ({folder.relative_to(shared)})"
        for name, folder in zip(names, folders, strict=True)
    ]


def paired(runs: Sequence[Run]) -> list[Run]:
    """The runs cut down to the episodes all of them have. Raises DataError if there are none."""
    common = set.intersection(*(set(run.episodes) for run in runs))
    if not common:
        raise DataError(f"{', '.join(run.name for run in runs)} have no episode in common: compare runs of one setting")
    order = [key for key in runs[0].episodes if key in common]
    return [replace(run, episodes={key: run.episodes[key] for key in order}) for run in runs]


def differences(runs: Sequence[Run]) -> list[str]:
    """Settings beside planner and memory in which the runs differ; a fair comparison has none.

    What times were taken on differs, too, where one run was played in several ways: resumed elsewhere, or merged.
    """
    remembering = [run.config for run in runs if "memory" in run.config]
    found = unequal(SETTING, [run.config for run in runs]) | unequal(MEMORY_SETTING, remembering)
    timed = {result.timed_on for run in runs for result in run.episodes.values()} - {""}
    return sorted(found) + ([f"what times were taken on ({' | '.join(sorted(timed))})"] if len(timed) > 1 else [])


def unequal_note(keys: Sequence[str]) -> list[Text]:
    """The note to show for runs of unequal settings; none for none."""
    note = f" these runs differ in more than their method: {', '.join(keys)}"
    return [Text.assemble(("note:", "yellow"), note)] if keys else []


def unequal(prefixes: tuple[str, ...], configs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Keys that begin with one of ``prefixes`` and are not the same in all ``configs``."""
    flat = [
        {key: value for key, value in _flat(config).items() if key.startswith(prefixes) and key not in IGNORED_KEYS}
        for config in configs
    ]
    return {key for key in set().union(*flat) if len({json.dumps(values.get(key)) for values in flat}) > 1}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}" if prefix else key).items()}


def _tasks(run: Run) -> list[Any]:
    return [task for result in run.episodes.values() for task in result.tasks]


def _steps(run: Run, wanted: Callable[[StepNumbers], bool] = lambda step: True) -> list[StepNumbers]:
    return [s for result in run.episodes.values() for s in result.steps if s.layers and wanted(s)]


def _times(run: Run, wanted: Callable[[StepNumbers], bool] = lambda step: True) -> dict[str, list[float]]:
    """ttft of the wanted steps by cluster."""
    times: dict[str, list[float]] = defaultdict(list)
    for result in run.episodes.values():
        times[cluster_of(result)] += [s.ttft_ms for s in result.steps if s.layers and wanted(s)]
    return times


def _median(samples: dict[str, list[float]]) -> float | None:
    values = sorted(value for part in samples.values() for value in part)
    middle = len(values) // 2
    return None if not values else (values[middle] + values[~middle]) / 2


def _ratio(top: dict[str, list[float]], bottom: dict[str, list[float]]) -> tuple[float | None, Interval]:
    """Ratio of medians over the clusters both sides have, with its interval."""
    common = [key for key in top if top[key] and bottom.get(key)]
    above, below = _median({k: top[k] for k in common}), _median({k: bottom[k] for k in common})
    return (None, None) if not above or not below else (above / below, ratio_interval(top, bottom))


def difference_of(
    run: Run, base: Run, rate: Callable[[Sequence[TaskOutcome]], float] = success_rate
) -> Difference | None:
    """Over tasks, of a rate here less there, paired."""
    samples: dict[str, list[float]] = defaultdict(list)
    for key, result in run.episodes.items():
        pairs = zip(result.tasks, base.episodes[key].tasks, strict=True)
        samples[cluster_of(result)] += [rate([here]) - rate([there]) for here, there in pairs]
    return paired_difference(samples)


def compare(run: Run, base: Run) -> Row:
    cost = costs(_steps(run))
    success = None if run is base else difference_of(run, base)
    subgoals = None if run is base else difference_of(run, base, subgoal_success_rate)
    ratio, ratio_bounds = (None, None) if run is base else _ratio(_times(run), _times(base))
    ttft, decision = cost["ttft_ms"] or {}, cost["decision_ms"] or {}
    tasks = _tasks(run)
    return Row(
        run.name, len(tasks), len(run.episodes), sum(result.crashed for result in run.episodes.values()),
        success_rate(tasks), success_interval([*run.episodes.values()]), success,
        goal_condition_rate(tasks), subgoal_success_rate(tasks), subgoals,
        ttft.get("p50"), ttft.get("p95"), ratio, ratio_bounds,
        decision.get("p50"), cost["computed_ratio"], cost["recomputed_ratio"], cost["kv_hit_rate"],
        **{key: cost[key] for key in KV},
        seconds=sum(result.seconds for result in run.episodes.values()),
    )  # fmt: skip


def by_length(run: Run, base: Run, edges: Sequence[float] = LENGTH_EDGES) -> list[Cell]:
    """The run's steps in bins of prompt length."""
    cells = []
    for low, high in pairwise(edges):

        def inside(step: StepNumbers, low: float = low, high: float = high) -> bool:
            return low <= step.request_tokens < high

        steps, times = _steps(run, inside), _times(run, inside)
        median = _median(times)
        if median is None:
            continue
        ratio, interval = (None, None) if run is base else _ratio(times, _times(base, inside))
        cells.append(Cell(run.name, low, high, len(steps), median, costs(steps)["computed_ratio"], ratio, interval))
    return cells


def choose_baseline(runs: Sequence[Run], name: str | None) -> Run:
    """The named run; by default full recomputation, the first of it if there are several, else the first run."""
    exact = [run for run in runs if run.name == name]
    wanted = exact or [run for run in runs if run.planner == (name or BASELINE)]
    if name and len(wanted) != 1:
        problem = "no run is" if not wanted else "several runs are"
        raise ConfigError(f"{problem} called {name!r}; choose one of: {', '.join(run.name for run in runs)}")
    return wanted[0] if wanted else runs[0]


def rows_table(rows: Sequence[Row], base: str) -> Table:
    table = Table(title=f"{rows[0].tasks} tasks, paired; medians; differences and ratios against {base}")
    table.caption = crashes((row.run, row.crashed, row.episodes) for row in rows) or None
    table.add_column("run", no_wrap=True)
    outcome = "success %", "difference", "pairs", "goals %", "sub-goals %", "difference"
    for heading in (*outcome, "ttft ms", "p95", "ratio", "decision", "computed", "recomp", "hits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.run,
            share(row.success_rate, row.success_interval),
            points(row.success_difference),
            pairs(row.success_difference),
            percent(row.goal_condition_rate),
            percent(row.subgoal_success_rate),
            difference(row.subgoal_difference),
            number(row.ttft_p50_ms, 1),
            number(row.ttft_p95_ms, 1),
            number(row.ttft_ratio) + bounds(row.ttft_ratio_interval),
            number(row.decision_p50_ms, 1),
            number(row.computed_ratio, 2),
            number(row.recomputed_ratio, 2),
            number(row.kv_hit_rate, 2),
        )
    return table


def kv_table(rows: Sequence[Row]) -> Table:
    """What the runs keep and read of keys and values."""
    table = Table(title="keys and values, in tokens; reads are means per decision")
    table.add_column("run", no_wrap=True)
    for heading in ("prefix hits", "peak request", "peak live", "raw reads", "live reads", "wall s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        sizes = (row.peak_request_tokens, row.peak_live_tokens, row.raw_kv_reads, row.live_kv_reads, row.seconds)
        table.add_row(row.run, number(row.prefix_hit_rate, 2), *(number(size, 0) for size in sizes))
    return table


def length_table(cells: Sequence[Cell]) -> Table:
    table = Table(title="by prompt length")
    table.add_column("prompt tokens")
    table.add_column("run")
    for heading in ("steps", "ttft p50 ms", "ttft ratio", "computed"):
        table.add_column(heading, justify="right")
    for cell in sorted(cells, key=lambda cell: cell.low):
        span = f"{cell.low:.0f}+" if math.isinf(cell.high) else f"{cell.low:.0f}–{cell.high - 1:.0f}"
        times = number(cell.ttft_p50_ms, 1), number(cell.ttft_ratio) + bounds(cell.ttft_ratio_interval)
        table.add_row(span, cell.run, str(cell.steps), *times, number(cell.computed_ratio))
    return table


def _finite(cell: Cell) -> dict[str, Any]:
    return asdict(cell) | {"high": None if math.isinf(cell.high) else cell.high}


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(prog="keep-eval-compare", description=__doc__,
                                        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    described.add_argument("runs", nargs="+", type=Path, help="run folders, or folders (a multirun's) that hold some")
    described.add_argument("--baseline", help=f"name of the run to compare with (default: {BASELINE}, else the first)")
    described.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    described.add_argument("--json", type=Path, metavar="FILE", help="write the tables there, too")
    return described


def report(arguments: argparse.Namespace, console: Console) -> None:
    runs = paired(load_runs(arguments.runs))
    base = choose_baseline(runs, arguments.baseline)
    differing = differences(runs)
    rows = [compare(run, base) for run in runs]
    cells = [cell for run in runs for cell in by_length(run, base)]
    tables = [rows_table(rows, base.name), *([kv_table(rows), length_table(cells)] if cells else [])]
    for table in tables:
        show(table, arguments.markdown, console)
    for note in unequal_note(differing):
        console.print(note)
    if arguments.json:
        found = {"baseline": base.name, "runs": [asdict(row) for row in rows], "by_length": [_finite(c) for c in cells],
                 "unequal_settings": differing}  # fmt: skip
        write_atomic(arguments.json, json.dumps(found, indent=2) + "\n")


def main() -> None:
    arguments = parser().parse_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
