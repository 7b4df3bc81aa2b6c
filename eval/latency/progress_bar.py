"""The progress bar of a latency run: it moves with every step, for a cell may take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@dataclass
class Steps:
    """Where the bar stands: ``laps`` per cell."""

    bar: Progress
    line: TaskID
    laps: int
    cells: int  # finished

    def tell(self, what: str, lap: int = 0) -> None:
        """``what`` is being done, in lap number ``lap`` of the present cell."""
        self.bar.update(self.line, completed=self.cells * self.laps + lap, description=what)

    def finish_cell(self) -> None:
        self.cells += 1
        self.bar.update(self.line, completed=self.cells * self.laps)


@contextmanager
def steps_bar(console: Console, laps: int, cells: int, done: int, shown: bool) -> Iterator[Steps]:
    """For ``cells`` of ``laps`` steps each, of which ``done`` are finished already."""
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True)
    bar.disable = not (shown and console.is_terminal)
    with bar:
        yield Steps(bar, bar.add_task("", total=laps * cells, completed=laps * done), laps, done)
