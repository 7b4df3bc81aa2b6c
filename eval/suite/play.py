"""Plays what a page is made of, each cell in a folder of its own: what is finished stays, what was begun goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from rich.console import Console

from eval.run import evaluate
from eval.suite.plan import RUNS, Cell, Page
from keep_agent.errors import KeepError
from keep_agent.overrides import expand_model
from keep_agent.runfolder import CONFIG, EPISODES, SUMMARY
from memory.disk.atomic import write_atomic

PRINTED = ".md"


def play(page: Page, out: Path, extra: Sequence[str], console: Console) -> None:
    """All cells, then all commands; ``extra`` overrides count for every cell. Raises KeepError where one fails."""
    cells = page.cells()
    for number, cell in enumerate(cells, 1):
        folder = out / cell.place
        if (folder / SUMMARY).exists():
            continue
        console.print(f"{page.name} {number}/{len(cells)}: {cell.setting.title}, {cell.row}", highlight=False)
        _play(cell, folder, extra, console)
    for title, words in page.commands.items():
        file = printed(out, title)
        if not file.exists():
            console.print(f"{page.name}: {title}", highlight=False)
            write_atomic(file, _output(placed(words, out)))


def printed(out: Path, title: str) -> Path:
    """Where what a command printed is kept."""
    return out / "".join(letter if letter.isalnum() else "-" for letter in title.lower()).strip("-")


def placed(words: Sequence[str], out: Path) -> list[str]:
    """The words of a command, with the page's runs where they are."""
    return [word.replace(RUNS, str(out)) for word in words]


def _play(cell: Cell, folder: Path, extra: Sequence[str], console: Console) -> None:
    given = expand_model([*cell.overrides, *extra])
    if (folder / CONFIG).exists() and (folder / EPISODES).exists():
        given = [*given, f"eval.resume={folder}"]
    with initialize_config_module("configs", version_base="1.3"):
        config = compose(cell.setting.world, given)
    evaluate(config, folder, console, given)


def _output(words: Sequence[str]) -> str:
    """What ``python -m`` these words prints. Raises KeepError with its last line if it fails."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it said nothing"]
        raise KeepError(f"python -m {' '.join(words)} ended with {done.returncode}: {told[-1]}")
    return done.stdout
