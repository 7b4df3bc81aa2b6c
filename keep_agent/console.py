"""Console without markup: paths, names and answers may contain ``[e]`` or ``:key:``, which rich would replace."""

from __future__ import annotations

from typing import Any

from rich.console import Console

FILE_WIDTH = 220  # columns of a file or pipe: wide enough for every table


def make_console(width: int | None = None, **options: Any) -> Console:
    """Make a console; for a file or pipe its default width is `FILE_WIDTH`. Colours need `rich.text.Text` or styles."""
    console = Console(width=width, markup=False, emoji=False, **options)
    if width is None and not console.is_terminal:
        console.width = FILE_WIDTH
    return console
