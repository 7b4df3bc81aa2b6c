"""Page of results: plays its runs, each in its own folder, and renders tables with paired differences in Markdown.

Finished runs are kept, and interrupted runs are resumed. A page shows no times, since these depend on machine load.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from eval.common.resume import differing_settings
from eval.common.run import evaluate
from eval.common.tables import Column, crashes, make_table, markdown
from eval.common.variants import key_of, within
from eval.compare import OUTCOME, SHARES, SUBGOALS, Run, compare, load_runs, setting_differences, with_common_episodes
from eval.suite.plan import RUNS, Page, PlannedRun, Setting
from keep_agent.config.compose import compose_settings
from keep_agent.config.known_settings import check_known
from keep_agent.config.literal import as_override
from keep_agent.config.model_names import expand_model
from keep_agent.errors import ConfigError, KeepError
from keep_agent.files import read_text
from keep_agent.rollout.run_folder import CONFIG, SUMMARY, read_config, read_summary
from memory.files.atomic import write_atomic

CHOICE_KEYS = {"planner", "memory"}  # config groups that rows choose; the command line may set keys in them
PAGE_KEYS = ("eval.out", "eval.resume", "eval.shard")  # set by the page itself


def check_page(page: Page, out: Path, extra: Sequence[str]) -> None:
    """Check a page before its first run. Raises ConfigError if an override cannot apply, or an earlier run differs."""
    if extra and not page.runs():
        raise ConfigError(f"{page.name} has no runs to which {' '.join(extra)} could apply; leave it out")
    reserved = {*PAGE_KEYS, *(["eval.seed"] if any(len(setting.seeds) > 1 for setting in page.settings) else [])}
    rows = {key_of(override) for overrides in page.rows.values() for override in overrides}

    def is_fixed(key: str) -> bool:
        """Return whether the page or a row sets ``key``. Naming a planner or memory does not set the keys below it."""
        in_rows = key in CHOICE_KEYS or within(key, rows - CHOICE_KEYS) or any(within(row, {key}) for row in rows)
        return within(key, reserved) or in_rows

    if fixed := [word for word in extra if is_fixed(key_of(word))]:
        raise ConfigError(f"{' '.join(fixed)} cannot apply to every run of {page.name}: the page sets it itself")
    for run in page.runs():
        check_known(run.setting.world, expand_model([*run.overrides, *extra]))
    for run in page.runs():
        if (out / run.folder / CONFIG).exists():
            folder, (config, _) = out / run.folder, _compose(run, extra)
            if changes := differing_settings(config, read_config(folder)):
                text = ", ".join(f"{key}={change}" for key, change in sorted(changes.items()))
                raise ConfigError(f"{folder} was run with other settings: {text}; delete it, or give another --out")


def play_page(page: Page, out: Path, extra: Sequence[str], console: Console) -> None:
    """Play all runs of a page with the ``extra`` overrides, then run its commands. Raises KeepError if one fails."""
    runs = page.runs()
    for number, run in enumerate(runs, 1):
        folder = out / run.folder
        if (folder / SUMMARY).exists():
            summary = read_summary(folder)
            if summary["episodes"] and summary["crashed"] == summary["episodes"]:
                crashed = f"all {summary['episodes']} episodes of {folder} crashed"
                raise KeepError(f"{crashed}; remove the cause and delete the folder")
            continue
        console.print(f"{page.name} {number}/{len(runs)}: {run.setting.title}, {run.row}", highlight=False)
        resumed = [as_override("eval.resume", str(folder))] if (folder / CONFIG).exists() else []
        config, overrides = _compose(run, extra, resumed)
        evaluate(config, folder, console, overrides)
    for title, words in page.commands.items():
        if command_output(title, words, out) is None:
            console.print(f"{page.name}: {title}", highlight=False)
            words = with_run_folder(words, out)
            done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no message"]
                raise KeepError(f"python -m {' '.join(words)} ended with {done.returncode}: {lines[-1]}")
            write_atomic(_output_file(title, out), f"{shlex.join(words)}\n{done.stdout}")


def command_output(title: str, words: Sequence[str], out: Path) -> str | None:
    """Return the stored output of a command, or None if the command has changed or a run that it reads is newer."""
    file = _output_file(title, out)
    if not file.exists():
        return None
    command, _, text = read_text(file, "delete it").partition("\n")
    reads = any(RUNS in word for word in words)
    runs = max((path.stat().st_mtime for path in out.rglob(SUMMARY)), default=0.0) if reads else 0.0
    return text if command == shlex.join(with_run_folder(words, out)) and file.stat().st_mtime >= runs else None


def with_run_folder(words: Sequence[str], out: Path) -> list[str]:
    """Replace `RUNS` in the words of a command by the folder of the page's runs."""
    return [word.replace(RUNS, str(out)) for word in words]


def _output_file(title: str, out: Path) -> Path:
    return out / ("".join(letter if letter.isalnum() else "-" for letter in title.lower()).strip("-") + ".md")


def _compose(run: PlannedRun, extra: Sequence[str], resumed: Sequence[str] = ()) -> tuple[DictConfig, list[str]]:
    overrides = [*expand_model([*run.overrides, *extra]), *resumed]
    return compose_settings(run.setting.world, overrides), overrides


COLUMNS: tuple[Column, ...] = (("run", lambda row: f"`{row.run}`"), *OUTCOME, *SUBGOALS, *SHARES)


def render_page(page: Page, out: Path, command: str) -> str:
    """Return the page in Markdown, with tables of the finished runs and outputs of the finished commands."""
    parts = [f"# {page.title}", page.about, f"```sh\n{command}\n```"]
    for setting in page.settings:
        runs = _runs(page, setting, out)
        if page.against in runs:
            parts.append(_section(page, setting, runs))
    for title, words in page.commands.items():
        if (text := command_output(title, words, out)) is not None:
            parts += [f"## {title}", f"```sh\npython -m {shlex.join(with_run_folder(words, out))}\n```", text.strip()]
    return "\n\n".join(parts) + "\n"


def _section(page: Page, setting: Setting, runs: dict[str, Run]) -> str:
    base = runs[page.against]
    rows = [compare(run, base) for run in runs.values()]
    title = f"{rows[0].tasks} tasks, paired with `{page.against}`, 95 % intervals"
    parts = [
        f"## {setting.title}",
        f"`python -m eval.{setting.world} {shlex.join(setting.overrides)}`",
        markdown(make_table(title, rows, COLUMNS)),
    ]
    if note := crashes((f"`{row.run}`", row.crashed, row.episodes) for row in rows):
        parts.append(f"{note[0].upper()}{note[1:]}.")
    hashes = {run.config.get("weights") for run in runs.values()} - {None}
    parts += [f"Weights {', '.join(sorted(weights[:12] for weights in hashes))}."] if hashes else []
    if unequal := [key for key in setting_differences(list(runs.values())) if not key.startswith("memory.")]:
        parts.append(f"The runs differ in more than their method: {', '.join(unequal)}.")
    return "\n\n".join(parts)


def _runs(page: Page, setting: Setting, out: Path) -> dict[str, Run]:
    """Return the finished rows by name, with the episodes that all rows have; a row's seeds form one run."""
    runs = []
    for row in page.rows:
        seed_runs = [run for run in page.runs() if run.setting is setting and run.row == row]
        if all((out / run.folder / SUMMARY).exists() for run in seed_runs):
            parts = [(run.seed, load_runs([out / run.folder])[0]) for run in seed_runs]
            if len({run.config.get("weights") for _, run in parts}) > 1:
                problem = f"the seeds of {row} were played with different weights"
                raise ConfigError(f"{out}: {problem}; delete the older runs")
            episodes = {f"{seed}/{key}": result for seed, run in parts for key, result in run.episodes.items()}
            runs.append(replace(parts[0][1], name=row, episodes=episodes))
    return {run.name: run for run in with_common_episodes(runs)} if runs else {}
