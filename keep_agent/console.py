"""Console: prints text as it is. Paths, names and answers may hold ``[e]`` or ``:key:``, which rich would interpret."""

from __future__ import annotations

from typing import Any

from rich.console import Console

FILE_WIDTH = 220  # columns of output that is no terminal: wide enough for every table


def make_console(width: int | None = None, **options: Any) -> Console:
    """The terminal; what is piped somewhere is not cut at 80 columns. Colours are given as `rich.text.Text` or styles.

    :param width: columns, whatever the output is; None: the terminal's, or `FILE_WIDTH`
    :param options: of `rich.console.Console`
    """
    console = Console(width=width, markup=False, emoji=False, **options)
    if width is None and not console.is_terminal:
        console.width = FILE_WIDTH
    return console
