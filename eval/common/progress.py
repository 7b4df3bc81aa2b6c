"""The progress bar of a resumable run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from keep_agent.rollout.run_folder import RunFolder


@contextmanager
def progress(
    console: Console, noun: str, total: int, run: RunFolder, shown: bool, describe: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    """Yields what is to be called after each result. An interrupt says how to go on."""
    columns = (TextColumn(noun, markup=False), BarColumn(), MofNCompleteColumn())
    told = TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, told, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
    bar.disable = not (shown and console.is_terminal)
    with bar:
        line = bar.add_task(describe(), total=total, completed=len(run.results))
        try:
            yield lambda: bar.update(line, advance=1, description=describe())
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"interrupted after {len(run.results)} {noun}; go on with eval.resume={run.path}")
            raise
