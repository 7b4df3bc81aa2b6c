"""``keep-agent token``: make a token, or make one void."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from rich.console import Console

from keep_agent.agent.validation import is_one_line
from keep_agent.errors import ConfigError
from keep_agent.server.auth.token_file import ALL, add_token, moment, remove_token
from keep_agent.server.auth.tokens import Access, Entry, digest, make_token
from memory.files.names import checked

SPAN = re.compile(r"(\d{1,5})([dhm])")
UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}
DAY = re.compile(r"\d{4}-\d\d-\d\d")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="keep-agent token",
        description="Make a token for keep-agent serve; it is shown once, the file has its hash. "
        "A server that is up reads the file again when it changes.",
    )
    p.add_argument("name", help="what the token is called in messages and in the file")
    p.add_argument("--agents", default=ALL, help="ids it is for, with commas between them; left out: all agents")
    p.add_argument(
        "--expires", metavar="WHEN", help="void after 30d, 12h or 45m, or from a date on (2030-01-31: midnight, UTC)"
    )
    p.add_argument("--file", type=Path, required=True, help="where tokens are kept; made if there is none")
    p.add_argument("--replace", action="store_true", help="make an older token of that name void")
    p.add_argument("--remove", action="store_true", help="make the token void, and no other")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Raises KeepError."""
    given = parser().parse_args(arguments)
    if given.remove:
        remove_token(given.file, given.name)
        console.print(f"{given.name} is void", soft_wrap=True, highlight=False, markup=False)
        return
    if not is_one_line(given.name) or not given.name.strip():
        raise ConfigError(f"name={given.name!r} cannot be shown; use letters and digits")
    token, access = make_token(), Access(given.name, _agents(given.agents))
    expires = None if given.expires is None else _expires(given.expires, datetime.now(UTC))
    add_token(given.file, Entry(access, digest(token), expires), given.replace)
    console.print(token, soft_wrap=True, highlight=False, markup=False)


def _agents(text: str) -> frozenset[str] | None:
    """Raises ConfigError for an id that is none, and for none at all."""
    if text == ALL:
        return None
    return frozenset(checked(one.strip()) for one in text.split(","))


def _expires(text: str, now: datetime) -> datetime:
    """The moment that ``--expires`` names. Raises ConfigError for none, and for one that is past."""
    found = _moment(text, now)
    if found <= now:
        raise ConfigError(f"--expires {text} is past: name a time to come")
    return found.replace(microsecond=0)


def _moment(text: str, now: datetime) -> datetime:
    span = SPAN.fullmatch(text)
    if span:
        return now + int(span[1]) * UNITS[span[2]]
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC) if DAY.fullmatch(text) else moment(text)
    except ValueError:
        raise ConfigError(f"--expires {text}: use 30d, 12h, 45m, 2030-01-31 or 2030-01-31T12:00:00Z") from None
