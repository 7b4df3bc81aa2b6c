"""One evaluation run, resumable: play the episodes of a config, write the run folder, print the tables."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import keep_agent
from envs.setting import Episode
from envs.worlds import spec_of
from eval.common.hydra_command import hydra_command
from eval.common.metrics import success_rate, summarize
from eval.common.resume import CreateFolder, begin_run, check_played
from eval.common.tables import cost_table, summary_table
from eval.workers.player import InProcessRunner
from eval.workers.processes import ProcessPool
from eval.workers.supervisor import Supervisor, WorkerError, WorkerSetup
from keep_agent.config.factory import make_episodes
from keep_agent.config.settings import RAY, check_settings
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, KeepError, check_choice
from keep_agent.files import unpacking
from keep_agent.rollout.results import EpisodeResult
from keep_agent.rollout.run_folder import RESTORE, SUMMARY, TRACE, RunFolder, read_summary
from keep_agent.rollout.wandb_logging import MODES, open_log

SHARD_PATTERN = re.compile(r"(\d+)/(\d+)", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``total``, counted from 0 and written ``number/total``.

    A shard takes every ``total``-th episode. Official data are sorted by task type, so contiguous shards would hold
    only short or only long tasks. Adjacent episodes often differ only in the wording of their instruction and take
    equally long; different shards play them.
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: Any) -> Shard:
        """Parse the value of ``eval.shard``: ``i/n``, or null for the whole run. Raises ConfigError otherwise."""
        if text is None:
            return cls(0, 1)
        match = SHARD_PATTERN.fullmatch(str(text))
        number, total = map(int, match.groups()) if match else (0, 0)
        if number >= total:
            raise ConfigError(f"eval.shard={text} does not work; give i/n with i from 0 to n-1, such as 0/4, or null")
        return cls(number, total)

    def indices(self, episodes: int) -> range:
        """Return the indices of the shard's episodes, out of ``episodes``. Raises ConfigError if the shard has none."""
        if self.number >= max(episodes, 1):
            raise ConfigError(f"eval.shard={self} has none of the {episodes} episodes; use {episodes} shards at most")
        return range(self.number, episodes, self.total)

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


@contextmanager
def progress_bar(
    console: Console, noun: str, total: int, completed: int, run: RunFolder, results: str, enabled: bool
) -> Iterator[Callable[..., None]]:
    """Yield the update function of a progress bar. An interrupt prints the setting that resumes the run."""
    columns = (TextColumn(noun, markup=False), BarColumn(), MofNCompleteColumn())
    text = TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, text, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
    bar.disable = not (enabled and console.is_terminal)
    with bar:
        try:
            yield partial(bar.update, bar.add_task("", total=total, completed=completed))
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"interrupted after {len(run.results)} {results}; continue with eval.resume={run.path}")
            raise


VERSION_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "networkx", "sentence-transformers")


def evaluate(config: DictConfig, folder: Path, console: Console, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Play the episodes of ``config`` and return the summary. The run folder is ``folder`` or ``eval.resume``."""
    with begin_run(RunFolder, config, folder, overrides, check_settings) as (earlier, config, create):
        return _evaluate(earlier, config, create, console)


def _evaluate(
    earlier: RunFolder | None, config: DictConfig, create: CreateFolder[RunFolder], console: Console
) -> dict[str, Any]:
    episodes = make_episodes(config.env, config.eval)
    shard = Shard.parse(config.eval.get("shard")).indices(len(episodes))
    todo = [index for index in shard if earlier is None or index not in earlier.finished]
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    check_choice("wandb.mode", config.wandb.mode, MODES)
    with closing(make_runner(config, len(todo))) as runner:
        setup = runner.setup
        _check_setup(setup, episodes, earlier)
        plain |= {"weights": setup.weights, "episodes": len(episodes)}
        plain |= {"trained": setup.trained} if setup.trained else {}
        run = earlier or create(plain)
        try:
            log = open_log(plain["wandb"], plain, run.path)
        except KeepError:
            if earlier is None:
                run.discard()
            raise
        done, enabled = len(run.results), config.eval.progress
        with progress_bar(console, "episodes", len(shard), done, run, "episodes", enabled) as update:
            update(description=_progress_text(run))
            try:
                for record in runner.play(todo):
                    run.commit(record.result, record.entries, record.frames)
                    log.episode(record.result)
                    update(advance=1, description=_progress_text(run))
            except WorkerError as error:
                raise WorkerError(f"{error}; continue with eval.resume={run.path}") from error
    results = sorted(run.results, key=lambda result: result.index)
    summary = summary_of(results, plain, versions_of(run, bool(todo)))
    run.write_summary(summary)
    log.finish(summary, results, run.path / TRACE)
    show(summary, results, run.path, console)
    return summary


def _check_setup(setup: WorkerSetup, episodes: Sequence[Episode], earlier: RunFolder | None) -> None:
    count = len(episodes)
    if setup.episodes != count:
        raise WorkerError(f"{setup.node} has {setup.episodes} episodes, not {count}; put the same env.data there")
    if earlier is None:
        return
    if (before := earlier.config.get("episodes", count)) != count:  # indices would refer to other episodes
        started = f"{earlier.path} was started with {before} episodes"
        raise ConfigError(f"{started}, but the data now have {count}; start a new run")
    if earlier.config["env"]["data"] is not None:  # generated episodes depend only on the seed
        check_played(episodes, {result.index: result.id for result in earlier.results}, earlier.path)
    earlier.check_weights(setup.weights, setup.trained)


def summary_of(
    results: Sequence[EpisodeResult], config: Mapping[str, Any], versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of ``summary.json`` for results in the order of their index."""
    return {**summarize(results), "seed": config["eval"]["seed"], "config": config, "versions": versions}


def show(summary: Mapping[str, Any], results: Sequence[EpisodeResult], path: Path, console: Console) -> None:
    """Print the tables and the folder of a run. Raises KeepError if all episodes crashed."""
    for table in (summary_table(summary, _title(summary["config"])), cost_table(summary)):
        if table is not None:
            console.print(table)
    console.print(f"run folder: {path}", soft_wrap=True)
    if results and all(result.crashed for result in results):
        raise KeepError(f"all {len(results)} episodes crashed, the first with {results[0].error!r}; see {path / TRACE}")


def _title(config: Mapping[str, Any]) -> str:
    env, planner = config["env"], config["planner"]["name"]
    memory = config.get("memory", {}).get("name", planner)
    world, source = spec_of(env["id"]).label(env), env["data"] or "embedded"
    name = planner if memory == planner else f"{planner} with memory={memory}"
    setting = f"{env['skills']} + {env['observability']}, {config['prompt']['style']}"
    shard = f", shard {config['eval']['shard']}" if config["eval"].get("shard") else ""
    return f"{name} in {world}: {source}, {env['split']}, {setting}{shard}"


def versions_of(run: RunFolder, any_played: bool) -> Mapping[str, str]:
    """Return the current versions; the saved versions if the run was finished and nothing was played this time."""
    if any_played or not (run.path / SUMMARY).exists():
        return versions()
    with unpacking(run.path / SUMMARY, "not a summary of a run", RESTORE):
        return read_summary(run.path)["versions"]


def _progress_text(run: RunFolder) -> str:
    success = success_rate([task for result in run.results for task in result.tasks])
    crashed = sum(result.crashed for result in run.results)
    restarted = sum(result.restarts > 0 for result in run.results)
    parts = [f"{count} {name}" for name, count in (("crashed", crashed), ("restarted", restarted)) if count]
    return ", ".join([f"success {100 * success:.1f} %", *parts])


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect the numbers."""
    packages = {"python": platform.python_version(), "keep-agent": keep_agent.__version__}
    for name in VERSION_PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return packages


def make_runner(config: DictConfig, episodes: int) -> InProcessRunner | Supervisor[Any]:
    """Make the runner that ``eval.workers`` and ``eval.launcher`` select. Raises KeepError for an unplayable config."""
    workers, launcher = config.eval.get("workers") or 1, config.eval.get("launcher") or "local"
    if workers > 1 and config.env.get("simulator"):
        raise ConfigError(
            f"eval.workers={workers} with env.simulator={config.env.simulator}: a simulator plays one episode at a "
            "time; use eval.workers=1, and one simulator for each eval.shard"
        )
    count = max(1, min(workers, episodes))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    if launcher == RAY:
        from eval.workers.ray_actors import ActorPool  # lazy: Ray is an extra

        return Supervisor(ActorPool(plain, count), count)
    return InProcessRunner(config) if count == 1 else Supervisor(ProcessPool(plain, count), count)


def world_command(name: str) -> None:
    """Run a world's command. Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted."""
    sys.exit(hydra_command(name, lambda config, folder, words: evaluate(config, folder, make_console(), words)))
