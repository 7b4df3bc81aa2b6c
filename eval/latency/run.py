"""One latency run, resumable: time the cells of a config, write the run folder, show tables and figure."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eval.common.plots import check_figure
from eval.common.resume import begin_run
from eval.common.run import progress_bar, versions
from eval.common.tables import show
from eval.common.variants import key_of, within
from eval.latency.cells import run_cells
from eval.latency.machine import Machine, this_machine
from eval.latency.report.figure import draw
from eval.latency.report.rows import LatencyFolder, to_record
from eval.latency.report.summary import summarize
from eval.latency.report.tables import group_tables
from eval.latency.scripts import Recordings
from eval.latency.settings import Composer, cells_of, check, method_overrides
from keep_agent.errors import ConfigError, KeepError

FIGURE = "latency.png"
DISPLAY_KEYS = ("markdown", "plot")  # display settings, which may change when a run is resumed
DISPLAY_OVERRIDES = [f"latency.{key}" for key in DISPLAY_KEYS]


def evaluate(config: DictConfig, folder: Path, console: Console, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Time the cells of ``config`` in ``folder``, or in the run of ``eval.resume``; return the summary."""
    command_config = config
    fixed = [override for override in overrides if not within(key_of(override), DISPLAY_OVERRIDES)]
    with (
        begin_run(LatencyFolder, config, folder, fixed, check) as (earlier, config, create),
        tempfile.TemporaryDirectory(prefix="keep-latency-") as scratch,
    ):
        config.latency.update({key: command_config.latency[key] for key in DISPLAY_KEYS})
        common = method_overrides(list(config.get("overrides", overrides)))
        machine, cells = this_machine(), cells_of(config)
        if earlier is not None and earlier.config.get("machine") != asdict(machine):  # times would not be comparable
            raise ConfigError(f"{earlier.path} was started on another machine or with other versions; start a new run")
        composer = Composer(config, common, Path(scratch))
        if earlier is not None:
            composer.check(command_config, overrides, earlier.path)
        recordings = Recordings(composer.setting)
        recordings[0]  # raises DataError if there is no episode
        ids = recordings.ids
        if earlier is not None and earlier.config.get("replays", ids) != ids:  # missing in older runs
            changed = f"{earlier.path} replays episodes that are no longer the first of the data"
            raise ConfigError(f"{changed}; start a new run")
        if config.latency.plot:
            check_figure((earlier.path if earlier else folder) / FIGURE)
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
        run = earlier or create(plain | {"overrides": common, "machine": asdict(machine), "replays": ids})
        todo = [(index, cell) for index, cell in enumerate(cells) if index not in run.finished]
        steps, done, enabled = config.latency.warmup + config.latency.steps, len(run.results), config.eval.progress
        total = steps * (done + len(todo))
        with progress_bar(console, "steps", total, steps * done, run, "cells", enabled) as update:

            def report(text: str, step: int = 0) -> None:
                update(completed=steps * len(run.results) + step, description=text)

            for result in run_cells(config, composer, recordings, todo, report):
                run.commit(result)
        return _finish(run, config, machine, console)


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
    for group in groups:
        for table in group_tables(group, config.latency.score):
            show(table, config.latency.markdown, console)
    console.print(f"machine: {machine.text}", soft_wrap=True)
    cells = [cell for group in groups for cell in group.cells]
    if not any(contender.times for cell in cells for contender in cell.summaries):
        reasons = [cell.refusal or contender.refusal for cell in cells for contender in (cell.summaries or [cell])]
        raise KeepError(f"nothing could be timed; first reason: {reasons[0]} (all reasons: {run.path})")
    if config.latency.plot or (config.latency.plot is None and find_spec("matplotlib")):
        draw(groups, run.path / FIGURE)
        console.print(f"figure: {run.path / FIGURE}", soft_wrap=True)
    console.print(f"run folder: {run.path}", soft_wrap=True)
    return summary
