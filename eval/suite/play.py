"""Plays what a page is made of, each cell in a folder of its own: what is finished stays, what was begun goes on."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from eval.common.accepted_overrides import key_of, within
from eval.common.resume import differing_settings
from eval.common.run import evaluate
from eval.suite.plan import RUNS, Cell, Page
from keep_agent.config.compose import compose_settings
from keep_agent.config.known_settings import check_known
from keep_agent.config.literal import as_override
from keep_agent.config.model_override import expand_model
from keep_agent.errors import ConfigError, KeepError
from keep_agent.files import read_text
from keep_agent.rollout.run_folder import CONFIG, SUMMARY, read_config, read_summary
from memory.files.atomic import write_atomic

CHOICES = {"planner", "memory"}
PAGE_KEYS = ("eval.out", "eval.resume", "eval.shard")  # what a page decides itself, and a run of it is whole


def check(page: Page, out: Path, extra: Sequence[str]) -> None:
    """Before the first run: are the overrides known, and were runs that are there made as the page has them now?

    Raises ConfigError.
    """
    if extra and not page.cells():
        raise ConfigError(f"{page.name} has no runs of its own that {' '.join(extra)} could count for; leave it out")
    own = {*PAGE_KEYS, *(["eval.seed"] if any(len(setting.seeds) > 1 for setting in page.settings) else [])}
    rows = {key_of(override) for overrides in page.rows.values() for override in overrides}
    if fixed := [one for one in extra if within(key_of(one), own) or _distinguishes_rows(key_of(one), rows)]:
        raise ConfigError(f"{' '.join(fixed)} cannot count for every run of {page.name}, which gives each its own")
    for cell in page.cells():
        check_known(cell.setting.world, expand_model([*cell.overrides, *extra]))
    for cell in page.cells():
        folder = out / cell.place
        if (folder / CONFIG).exists():
            config, _ = _compose(cell, extra)
            if otherwise := differing_settings(config, read_config(folder)):
                shown = ", ".join(f"{key}={change}" for key, change in sorted(otherwise.items()))
                raise ConfigError(f"{folder} was run otherwise: {shown}; delete it, or take another --out")


def _distinguishes_rows(key: str, rows: Collection[str]) -> bool:
    """Would ``key`` take the place of what tells ``rows`` apart? A part of a planner or a memory does not."""
    return key in CHOICES or within(key, {*rows} - CHOICES) or any(within(row, {key}) for row in rows)


def play(page: Page, out: Path, extra: Sequence[str], console: Console) -> None:
    """All cells, then all commands; ``extra`` overrides count for every cell. Raises KeepError where one fails."""
    cells = page.cells()
    for number, cell in enumerate(cells, 1):
        folder = out / cell.place
        if (folder / SUMMARY).exists():
            _check_played(folder)
            continue
        console.print(f"{page.name} {number}/{len(cells)}: {cell.setting.title}, {cell.row}", highlight=False)
        resumed = [as_override("eval.resume", str(folder))] if (folder / CONFIG).exists() else []
        config, given = _compose(cell, extra, resumed)
        evaluate(config, folder, console, given)
    for title, words in page.commands.items():
        if command_output(title, words, out) is None:
            console.print(f"{page.name}: {title}", highlight=False)
            words = with_run_folder(words, out)
            write_atomic(_output_file(title, out), f"{shlex.join(words)}\n{_output(words)}")


def _check_played(folder: Path) -> None:
    """Raises KeepError for a finished run without a result, as when it was played."""
    summary = read_summary(folder)
    if summary["episodes"] and summary["crashed"] == summary["episodes"]:
        raise KeepError(f"all {summary['episodes']} episodes of {folder} crashed; mend the cause and delete it")


def command_output(title: str, words: Sequence[str], out: Path) -> str | None:
    """What the command printed, if it was run with these words and behind the last of the runs it may have read."""
    file = _output_file(title, out)
    if not file.exists():
        return None
    command, _, text = read_text(file, "delete it").partition("\n")
    reads = any(RUNS in word for word in words)
    runs = max((path.stat().st_mtime for path in out.rglob(SUMMARY)), default=0.0) if reads else 0.0
    return text if command == shlex.join(with_run_folder(words, out)) and file.stat().st_mtime >= runs else None


def with_run_folder(words: Sequence[str], out: Path) -> list[str]:
    """The words of a command, with the page's runs where they are."""
    return [word.replace(RUNS, str(out)) for word in words]


def _output_file(title: str, out: Path) -> Path:
    return out / ("".join(letter if letter.isalnum() else "-" for letter in title.lower()).strip("-") + ".md")


def _compose(cell: Cell, extra: Sequence[str], resumed: Sequence[str] = ()) -> tuple[DictConfig, list[str]]:
    """The config of a cell's run, and the overrides that made it."""
    given = [*expand_model([*cell.overrides, *extra]), *resumed]
    return compose_settings(cell.setting.world, given), given


def _run_command(words: Sequence[str]) -> str:
    """What ``python -m`` these words prints. Raises KeepError with its last line if it fails."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it said nothing"]
        raise KeepError(f"python -m {' '.join(words)} ended with {done.returncode}: {told[-1]}")
    return done.stdout
