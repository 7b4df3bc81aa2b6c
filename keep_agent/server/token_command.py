"""``keep-agent token``: make a token, or make one void."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from keep_agent.asked import on_one_line
from keep_agent.errors import ConfigError
from keep_agent.server.tokens import ALL, Access, add_token, make_token, remove_token
from memory.agents import checked


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="keep-agent token",
        description="Make a token for keep-agent serve; it is shown once, the file has its hash.",
    )
    p.add_argument("name", help="what the token is called in messages and in the file")
    p.add_argument("--agents", default=ALL, help="ids it is for, with commas between them; left out: all agents")
    p.add_argument("--file", type=Path, required=True, help="where tokens are kept; made if there is none")
    p.add_argument("--replace", action="store_true", help="make an older token of that name void")
    p.add_argument("--remove", action="store_true", help="make the token void, and no other")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Raises KeepError."""
    given = parser().parse_args(arguments)
    if given.remove:
        remove_token(given.file, given.name)
        console.print(f"{given.name} is void for servers that start from now on", soft_wrap=True, highlight=False)
        return
    if not on_one_line(given.name) or not given.name.strip():
        raise ConfigError(f"name={given.name!r} cannot be shown; use letters and digits")
    token = make_token()
    add_token(given.file, Access(given.name, _agents(given.agents)), token, given.replace)
    console.print(token, soft_wrap=True, highlight=False, markup=False)


def _agents(text: str) -> frozenset[str] | None:
    """Raises ConfigError for an id that is none, and for none at all."""
    if text == ALL:
        return None
    return frozenset(checked(one.strip()) for one in text.split(","))
