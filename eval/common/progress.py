"""Progress bar of a resumable run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from keep_agent.rollout.run_folder import RunFolder


@contextmanager
def progress(
    console: Console, noun: str, total: int, run: RunFolder, enabled: bool, describe: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    """Show a bar of results; yield the function to call after each of them."""
    with progress_bar(console, noun, total, len(run.results), run, noun, enabled) as update:
        update(description=describe())
        yield lambda: update(advance=1, description=describe())


@contextmanager
def progress_bar(
    console: Console, noun: str, total: int, completed: int, run: RunFolder, results: str, enabled: bool
) -> Iterator[Callable[..., None]]:
    """Show a bar of ``total`` ``noun``; yield its update function. An interrupt prints how to resume the run.

    :param results: noun for the run's results
    """
    columns = (TextColumn(noun, markup=False), BarColumn(), MofNCompleteColumn())
    text = TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, text, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
    bar.disable = not (enabled and console.is_terminal)
    with bar:
        try:
            yield partial(bar.update, bar.add_task("", total=total, completed=completed))
        except KeyboardInterrupt:
            bar.stop()
            console.print(f"interrupted after {len(run.results)} {results}; go on with eval.resume={run.path}")
            raise
