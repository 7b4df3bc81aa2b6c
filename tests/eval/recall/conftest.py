"""Command ``eval.recall``, called in this process."""

from __future__ import annotations

from eval.recall.__main__ import parser, report
from keep_agent.console import make_console


def recall(*arguments: str) -> None:
    report(parser().parse_intermixed_args([*arguments]), make_console())
