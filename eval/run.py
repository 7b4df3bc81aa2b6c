"""One run: play the episodes of a config, write its folder, show the tables. Resumable."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import keep_agent
from envs.setting import Episode
from envs.worlds import world_of
from eval.metrics import success_rate, summarize
from eval.progress import progress
from eval.resume import begin
from eval.tables import cost_table, summary_table
from keep_agent.assemble import demonstration, make_env, make_episodes, make_planner
from keep_agent.errors import KeepError
from keep_agent.frames import Frames
from keep_agent.logging_wandb import RunLog, check_mode, open_log
from keep_agent.loop import run_episode
from keep_agent.results import EpisodeResult
from keep_agent.runfolder import TRACE, RunFolder
from keep_agent.settings import check_settings

VERSIONED = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "networkx", "sentence-transformers")


def evaluate(config: DictConfig, folder: Path, console: Console, given: Sequence[str] = ()) -> dict[str, Any]:
    """Play the episodes of ``config`` into ``folder``, or the one it resumes; returns the summary that was written.

    ``given`` are the overrides of the command line. Everything that can be wrong with the input is found before the
    folder is touched.
    """
    earlier, config = begin(RunFolder, config, given, check_settings)
    episodes = make_episodes(config.env, config.eval)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    check_mode(config.wandb.mode)
    with closing(make_env(config.env, episodes)) as env, closing(make_planner(config)) as planner:
        if earlier is not None:
            earlier.check_weights(planner.weights)
        plain["weights"] = planner.weights
        run = earlier or RunFolder.create(folder, plain)
        try:
            log = open_log(plain["wandb"], plain, run.path)
        except KeepError:
            if earlier is None:
                run.discard()
            raise
        settings = {"skills": config.env.skills, "demonstrate": demonstration(config.env)}
        todo = [index for index in range(len(episodes)) if index not in run.finished]
        with progress(console, "episodes", len(episodes), run, config.eval.progress, lambda: _so_far(run)) as tell:
            for index in todo:
                seed, episode = config.eval.seed + index, episodes[index]
                frames = _frames(config.eval, episode)
                result, entries = run_episode(env, planner, episode, index=index, seed=seed, frames=frames, **settings)
                run.commit(result, entries if config.eval.trace else (), frames)
                log.episode(result)
                tell()
    return _finish(run, log, plain, console)


def _frames(evaluation: DictConfig, episode: Episode) -> Frames | None:
    """Where an episode's pictures go; None if they are not kept, as in runs older than the setting."""
    kept = evaluation.get("frames") if evaluation.trace else None
    return Frames(episode.id, kept) if kept else None


def _finish(run: RunFolder, log: RunLog, config: Mapping[str, Any], console: Console) -> dict[str, Any]:
    results = sorted(run.results, key=lambda result: result.index)
    summary = {**summarize(results), "seed": config["eval"]["seed"], "config": config, "versions": versions()}
    run.write_summary(summary)
    log.finish(summary, results, run.path / TRACE)
    for table in (summary_table(summary, _title(config)), cost_table(summary)):
        if table is not None:
            console.print(table)
    console.print(f"run folder: {run.path}", soft_wrap=True)
    _complain(results, run.path)
    return summary


def _complain(results: Sequence[EpisodeResult], path: Path) -> None:
    """A run in which nothing worked is an error, not a result."""
    if results and all(result.crashed for result in results):
        raise KeepError(f"all {len(results)} episodes crashed, the first with {results[0].error!r}; see {path / TRACE}")


def _title(config: Mapping[str, Any]) -> str:
    env, planner = config["env"], config["planner"]["name"]
    memory = config.get("memory", {}).get("name", planner)
    world, source = world_of(env["id"]).label(env), env["data"] or "embedded"
    name = planner if memory == planner else f"{planner} with memory={memory}"
    setting = f"{env['skills']} + {env['observability']}, {config['prompt']['style']}"
    return f"{name} in {world}: {source}, {env['split']}, {setting}"


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
