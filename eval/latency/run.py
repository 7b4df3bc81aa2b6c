"""One run: time the cells of a config, write its folder, show the tables and the figure. Resumable."""

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

from eval.common.accepted_overrides import key_of, within
from eval.common.plots import check_figure
from eval.common.resume import begin
from eval.common.run import versions
from eval.common.tables import show
from eval.latency.cells import ReportProgress, run_cells
from eval.latency.episode_scripts import Recordings
from eval.latency.machine import Machine, this_machine
from eval.latency.progress_bar import steps_bar
from eval.latency.report.figure import draw
from eval.latency.report.rows import CellResult, LatencyFolder
from eval.latency.report.summary import GroupSummary, summarize
from eval.latency.report.tables import group_tables
from eval.latency.settings import Composer, cells_of, check, method_overrides
from keep_agent.errors import ConfigError, KeepError

FIGURE = "latency.png"
DISPLAY_KEYS = ("markdown", "plot")  # how a run is shown, which says nothing about what it was
DISPLAY_OVERRIDES = [f"latency.{key}" for key in DISPLAY_KEYS]


def evaluate(config: DictConfig, folder: Path, console: Console, given: Sequence[str] = ()) -> dict[str, Any]:
    """Time the cells of ``config`` into ``folder``, or the one it resumes; returns the summary that was written.

    ``given`` are the overrides of the command line. What is wrong with them is found before the folder is touched; a
    model that cannot be loaded here is a refused cell.
    """
    asked, counting = config, [one for one in given if not within(key_of(one), DISPLAY_OVERRIDES)]
    with (
        begin(LatencyFolder, config, folder, counting, check) as (earlier, config, create),
        tempfile.TemporaryDirectory(prefix="keep-latency-") as scratch,
    ):
        config.latency.update({key: asked.latency[key] for key in DISPLAY_KEYS})
        overrides = method_overrides(list(config.get("overrides", given)))
        machine, cells = this_machine(), cells_of(config)
        _check_machine(earlier, machine)
        composer = Composer(config, overrides, Path(scratch))
        if earlier is not None:
            composer.check(asked, given, earlier.path)
        recordings = Recordings(composer.setting)
        recordings[0]  # that there is one
        _check_episodes(earlier, recordings)
        if config.latency.plot:
            check_figure((earlier.path if earlier else folder) / FIGURE)
        run = earlier or create(_saved(config, overrides, machine, recordings))
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
    """Do the ``work`` of the ``cells`` that are left; an interrupt says how to go on."""
    laps, done = config.latency.warmup + config.latency.steps, len(run.results)
    with steps_bar(console, laps, done + cells, done, config.eval.progress) as bar:
        try:
            for result in work(bar.tell):
                run.commit(result)
                bar.finish_cell()
        except KeyboardInterrupt:
            bar.bar.stop()
            console.print(f"interrupted after {len(run.results)} cells; go on with eval.resume={run.path}")
            raise


def _saved(config: DictConfig, overrides: Sequence[str], machine: Machine, recordings: Recordings) -> dict[str, Any]:
    """What a new run writes down: its config, and where it began."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    return plain | {"overrides": list(overrides), "machine": asdict(machine), "replays": recordings.ids}


def _check_machine(run: LatencyFolder | None, machine: Machine) -> None:
    """Raises ConfigError if the run began elsewhere: its times are no others' times."""
    if run is not None and run.config.get("machine") != asdict(machine):
        raise ConfigError(f"{run.path} was begun on another machine or with other versions; start a new run")


def _check_episodes(run: LatencyFolder | None, recordings: Recordings) -> None:
    """Raises ConfigError if the run began with other episodes: one table would tell of two prompts."""
    if run is not None and run.config.get("replays", recordings.ids) != recordings.ids:  # an older run does not say
        raise ConfigError(f"{run.path} replays episodes that the data no longer begin with; start a new run")


def _finish(run: LatencyFolder, config: DictConfig, machine: Machine, console: Console) -> dict[str, Any]:
    groups = summarize(run.results)
    summary = {
        "machine": asdict(machine),
        "groups": [asdict(group) for group in groups],
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
    """A run in which nothing could be timed is an error, not a result."""
    cells = [cell for group in groups for cell in group.cells]
    if not any(standing.times for cell in cells for standing in cell.standings):
        reasons = [cell.refused or one.refused for cell in cells for one in (cell.standings or [cell])]
        raise KeepError(f"nothing could be timed; first reason: {reasons[0]} (all are in {path})")
