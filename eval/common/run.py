"""One run: play the episodes of a config, write its folder, show the tables. Resumable."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import keep_agent
from envs.setting import Episode
from envs.worlds import spec_of
from eval.common.metrics import success_rate, summarize
from eval.common.progress import progress
from eval.common.resume import Create, begin, check_played
from eval.common.shard import Shard
from eval.common.tables import cost_table, summary_table
from eval.workers.base import CrewError, Played, Setup
from eval.workers.factory import make_crew
from keep_agent.config.factory import make_episodes
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError, KeepError, check_choice
from keep_agent.files import unpacking
from keep_agent.rollout.results import EpisodeResult
from keep_agent.rollout.run_folder import AGAIN, SUMMARY, TRACE, RunFolder, read_summary
from keep_agent.rollout.wandb_logging import MODES, open_log

VERSIONED = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "networkx", "sentence-transformers")


def evaluate(config: DictConfig, folder: Path, console: Console, given: Sequence[str] = ()) -> dict[str, Any]:
    """Play the episodes of ``config`` into ``folder``, or the one it resumes; returns the summary that was written.

    ``given`` are the overrides of the command line. Everything that can be wrong with the input is found before the
    folder is touched.
    """
    with begin(RunFolder, config, folder, given, check_settings) as (earlier, config, create):
        return _evaluate(earlier, config, create, console)


def _evaluate(
    earlier: RunFolder | None, config: DictConfig, create: Create[RunFolder], console: Console
) -> dict[str, Any]:
    episodes = make_episodes(config.env, config.eval)
    count = len(episodes)
    mine = Shard.parse(config.eval.get("shard")).indices(count)
    todo = [index for index in mine if earlier is None or index not in earlier.finished]
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    check_choice("wandb.mode", config.wandb.mode, MODES)
    with closing(make_crew(config, len(todo))) as crew:
        _check(crew.setup, episodes, earlier)
        plain |= {"weights": crew.setup.weights, "episodes": count}
        plain |= {"trained": crew.setup.trained} if crew.setup.trained else {}
        run = earlier or create(plain)
        try:
            log = open_log(plain["wandb"], plain, run.path)
        except KeepError:
            if earlier is None:
                run.discard()
            raise
        with progress(console, "episodes", len(mine), run, config.eval.progress, lambda: _so_far(run)) as tell:
            for played in _resumable(crew.play(todo), run):
                run.commit(played.result, played.entries, played.frames)
                log.episode(played.result)
                tell()
    results = sorted(run.results, key=lambda result: result.index)
    summary = summary_of(results, plain, versions_of(run, bool(todo)))
    run.write_summary(summary)
    log.finish(summary, results, run.path / TRACE)
    show(summary, results, run.path, console)
    return summary


def _check(setup: Setup, episodes: Sequence[Episode], earlier: RunFolder | None) -> None:
    """Raises KeepError for players with other data than this process, or with other data or weights than earlier."""
    count = len(episodes)
    if setup.episodes != count:
        raise CrewError(f"{setup.where} has {setup.episodes} episodes, not {count}; put the same env.data there")
    if earlier is not None:
        if (before := earlier.config.get("episodes", count)) != count:  # a number would mean another one
            raise ConfigError(f"{earlier.path} is of {before} episodes, now there are {count}; start a new run")
        if earlier.config["env"]["data"] is not None:  # what the seed makes is the same anyway
            check_played(episodes, {result.index: result.id for result in earlier.results}, earlier.path)
        earlier.check_weights(setup.weights, setup.trained)


def _resumable(played: Iterable[Played], run: RunFolder) -> Iterator[Played]:
    """Processes that do not live cost what they were playing, and nothing else."""
    try:
        yield from played
    except CrewError as error:
        raise CrewError(f"{error}; go on with eval.resume={run.path}") from error


def summary_of(
    results: Sequence[EpisodeResult], config: Mapping[str, Any], versions: Mapping[str, str]
) -> dict[str, Any]:
    """What ``summary.json`` holds, from results in the order of their index."""
    return {**summarize(results), "seed": config["eval"]["seed"], "config": config, "versions": versions}


def show(summary: Mapping[str, Any], results: Sequence[EpisodeResult], path: Path, console: Console) -> None:
    """The tables of a run, and where it is. Raises KeepError if all crashed: that is no result."""
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


def versions_of(run: RunFolder, played: bool) -> Mapping[str, str]:
    """Those that are at work, or, where nothing was left to play, those that a run was finished with."""
    if played or not (run.path / SUMMARY).exists():
        return versions()
    with unpacking(run.path / SUMMARY, "no summary of a run", AGAIN):
        return read_summary(run.path)["versions"]


def _so_far(run: RunFolder) -> str:
    tasks = [task for result in run.results for task in result.tasks]
    counts = {
        "crashed": sum(result.crashed for result in run.results),
        "restarted": sum(result.restarts > 0 for result in run.results),
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join([f"success {100 * success_rate(tasks):.1f} %", *told])


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"python": platform.python_version(), "keep-agent": keep_agent.__version__}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
