"""``keep-agent token``: create or revoke a token."""

from __future__ import annotations

import argparse
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from rich.console import Console

from keep_agent.agent.validation import is_one_line
from keep_agent.errors import ConfigError
from keep_agent.server.auth.token_file import ALL, add_token, parse_time, remove_token
from keep_agent.server.auth.tokens import Access, TokenEntry, digest
from memory.files.names import safe_id

SPAN = re.compile(r"(\d{1,5})([dhm])")
UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}
DAY = re.compile(r"\d{4}-\d\d-\d\d")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="keep-agent token",
        description="Make or revoke a token for keep-agent serve. A new token is shown once; the file stores its hash. "
        "A running server notices changes of the file.",
    )
    p.add_argument("name", help="the token's name in messages and in the file")
    p.add_argument("--agents", default=ALL, help="ids of the token's agents, separated by commas (default: all)")
    when = "expires after 30d, 12h or 45m, or at the beginning of a date in UTC (2030-01-31)"
    p.add_argument("--expires", metavar="WHEN", help=when)
    p.add_argument("--file", type=Path, required=True, help="file of tokens; created if it does not exist")
    p.add_argument("--replace", action="store_true", help="revoke an older token of the same name")
    p.add_argument("--remove", action="store_true", help="revoke the token without making another")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Run the command. Raises KeepError."""
    options = parser().parse_args(arguments)
    name = options.name
    if options.remove:
        remove_token(options.file, name)
        console.print(f"the token of {name} is revoked", soft_wrap=True, highlight=False, markup=False)
        return
    if not is_one_line(name) or not name.strip():
        raise ConfigError(f"name={name!r} cannot be shown; use letters and digits")
    agents = None if options.agents == ALL else frozenset(safe_id(agent.strip()) for agent in options.agents.split(","))
    token = secrets.token_urlsafe(32)  # 256 bits
    expires = None if options.expires is None else _expires(options.expires, datetime.now(UTC))
    add_token(options.file, TokenEntry(Access(name, agents), digest(token), expires), options.replace)
    console.print(token, soft_wrap=True, highlight=False, markup=False)


def _expires(text: str, current: datetime) -> datetime:
    span = SPAN.fullmatch(text)
    try:
        if span:
            expires = current + int(span[1]) * UNITS[span[2]]
        else:
            day = DAY.fullmatch(text)
            expires = datetime.combine(date.fromisoformat(text), time(), UTC) if day else parse_time(text)
    except ValueError:
        raise ConfigError(f"--expires {text}: use 30d, 12h, 45m, 2030-01-31 or 2030-01-31T12:00:00Z") from None
    if expires <= current:
        raise ConfigError(f"--expires {text} is in the past: give a time in the future")
    return expires.replace(microsecond=0)
