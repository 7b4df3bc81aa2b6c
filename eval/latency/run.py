"""One latency run, resumable: time the cells of a config, write the run folder, show tables and figure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eval.common.plots import check_figure
from eval.common.resume import begin
from eval.common.run import progress_bar, versions
from eval.common.tables import show
from eval.common.variants import key_of, within
from eval.latency.cells import ReportProgress, run_cells
from eval.latency.machine import Machine, this_machine
from eval.latency.report.figure import draw
from eval.latency.report.rows import CellResult, LatencyFolder, to_record
from eval.latency.report.summary import GroupSummary, summarize
from eval.latency.report.tables import group_tables
from eval.latency.scripts import Recordings
from eval.latency.settings import Composer, cells_of, check, method_overrides
from keep_agent.errors import ConfigError, KeepError

FIGURE = "latency.png"
DISPLAY_KEYS = ("markdown", "plot")  # settings of the display, which may change when a run is resumed
DISPLAY_OVERRIDES = [f"latency.{key}" for key in DISPLAY_KEYS]


def evaluate(config: DictConfig, folder: Path, console: Console, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Time the cells of ``config`` into ``folder``, or into the run it resumes; return the summary.

    ``overrides`` are the command line's. Invalid ones are reported before the folder is touched; a model that cannot be
    loaded here is a refused cell.
    """
    command_config = config
    fixed = [override for override in overrides if not within(key_of(override), DISPLAY_OVERRIDES)]
    with (
        begin(LatencyFolder, config, folder, fixed, check) as (earlier, config, create),
        tempfile.TemporaryDirectory(prefix="keep-latency-") as scratch,
    ):
        config.latency.update({key: command_config.latency[key] for key in DISPLAY_KEYS})
        common = method_overrides(list(config.get("overrides", overrides)))
        machine, cells = this_machine(), cells_of(config)
        _check_machine(earlier, machine)
        composer = Composer(config, common, Path(scratch))
        if earlier is not None:
            composer.check(command_config, overrides, earlier.path)
        recordings = Recordings(composer.setting)
        recordings[0]  # raises DataError if there is no episode
        _check_episodes(earlier, recordings)
        if config.latency.plot:
            check_figure((earlier.path if earlier else folder) / FIGURE)
        run = earlier or create(_saved(config, common, machine, recordings))
        todo = [(index, cell) for index, cell in enumerate(cells) if index not in run.finished]
        _time(run, config, partial(run_cells, config, composer, recordings, todo), len(todo), console)
        return _finish(run, config, machine, console)


def _time(
    run: LatencyFolder,
    config: DictConfig,
    work: Callable[[ReportProgress], Iterator[CellResult]],
    cells: int,
    console: Console,
) -> None:
    """Time the remaining ``cells``; an interrupt prints how to resume the run."""
    steps, done = config.latency.warmup + config.latency.steps, len(run.results)
    total, enabled = steps * (done + cells), config.eval.progress
    with progress_bar(console, "steps", total, steps * done, run, "cells", enabled) as update:

        def report(text: str, step: int = 0) -> None:
            update(completed=steps * len(run.results) + step, description=text)

        for result in work(report):
            run.commit(result)


def _saved(config: DictConfig, overrides: Sequence[str], machine: Machine, recordings: Recordings) -> dict[str, Any]:
    """Return the content of a new run's config file: config, overrides, machine and ids of the episodes."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    return plain | {"overrides": list(overrides), "machine": asdict(machine), "replays": recordings.ids}


def _check_machine(run: LatencyFolder | None, machine: Machine) -> None:
    """Raises ConfigError if the run was started on another machine, whose times are not comparable."""
    if run is not None and run.config.get("machine") != asdict(machine):
        raise ConfigError(f"{run.path} was started on another machine or with other versions; start a new run")


def _check_episodes(run: LatencyFolder | None, recordings: Recordings) -> None:
    """Raises ConfigError if the run was started with other episodes, whose prompts differ."""
    if run is not None and run.config.get("replays", recordings.ids) != recordings.ids:  # missing in older runs
        raise ConfigError(f"{run.path} replays episodes that are no longer the first of the data; start a new run")


def _finish(run: LatencyFolder, config: DictConfig, machine: Machine, console: Console) -> dict[str, Any]:
    groups = summarize(run.results)
    summary = {
        "machine": asdict(machine),
        "groups": [to_record(group) for group in groups],
        "seed": config.eval.seed,
        "config": OmegaConf.to_container(config, resolve=True),
        "versions": versions(),
    }
    run.write_summary(summary)
    _show(groups, config, console)
    console.print(f"machine: {machine.text}", soft_wrap=True)
    _check_ran(groups, run.path)
    if config.latency.plot or (config.latency.plot is None and find_spec("matplotlib")):
        draw(groups, run.path / FIGURE)
        console.print(f"figure: {run.path / FIGURE}", soft_wrap=True)
    console.print(f"run folder: {run.path}", soft_wrap=True)
    return summary


def _show(groups: Sequence[GroupSummary], config: DictConfig, console: Console) -> None:
    for group in groups:
        for table in group_tables(group, config.latency.score):
            show(table, config.latency.markdown, console)


def _check_ran(groups: Sequence[GroupSummary], path: Path) -> None:
    """Raises KeepError for a run in which nothing could be timed."""
    cells = [cell for group in groups for cell in group.cells]
    if not any(standing.times for cell in cells for standing in cell.standings):
        reasons = [cell.refusal or contender.refusal for cell in cells for contender in (cell.standings or [cell])]
        raise KeepError(f"nothing could be timed; first reason: {reasons[0]} (all reasons: {path})")
