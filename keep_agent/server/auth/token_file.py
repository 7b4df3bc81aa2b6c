"""Token file. Changes are made under a lock; a running server reads the file again when it changes."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError, DataError
from keep_agent.files import read_json
from keep_agent.server.auth.tokens import TOKEN_VARIABLE, Access, TokenEntry, Tokens, digest
from memory.files.atomic import replace_file
from memory.files.names import safe_id

ALL = "*"
DIGEST = 64  # hexadecimal digits of SHA-256
KEYS, OPTIONAL = {"name", "sha256", "agents"}, {"expires"}
log = logging.getLogger(__name__)


def load_tokens(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Tokens:
    """Load tokens from a file and the environment; without both, no token is needed. Raises ConfigError, DataError."""
    token = environ.get(TOKEN_VARIABLE)
    if token is not None and (not token.strip() or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(f"{TOKEN_VARIABLE} must be ASCII without blanks: set a long random text, or unset it")
    entries = () if token is None else (TokenEntry(Access(TOKEN_VARIABLE), digest(token)),)
    return Tokens(entries, open=token is None) if file is None else TokenFile(file, entries)


class TokenFile(Tokens):
    """The tokens of ``file`` and ``extra``. While the file is missing or damaged, the tokens read last stay valid."""

    def __init__(self, file: Path, extra: Sequence[TokenEntry] = ()) -> None:
        self._file, self._extra, self._stamp = file, tuple(extra), _stamp(file)
        self._entries = self._read()

    @property
    def entries(self) -> Sequence[TokenEntry]:
        stamp = _stamp(self._file)  # before the read, so that the next call detects a change during the read
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._entries = self._read()
            except (DataError, OSError) as error:
                if not isinstance(error, DataError):  # perhaps temporary: the next call reads again
                    self._stamp = ()
                log.error("%s; the %d token(s) read before stay valid", error, len(self._entries))
            else:
                log.info("%s has changed: %d token(s) are valid", self._file, len(self._entries))
        return self._entries

    def _read(self) -> Sequence[TokenEntry]:
        return (*read_tokens(self._file), *self._extra)


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Return a value that differs after every change of a file; None for a missing one."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_tokens(file: Path) -> list[TokenEntry]:
    """Read the entries of a file. Raises DataError, also for a missing file: it must not count as an empty one."""
    content = read_json(file, f"make it with: keep-agent token NAME --file {file}")
    if not isinstance(content, dict) or not isinstance(content.get("tokens"), list):
        raise DataError(f'{file} is not {{"tokens": [...]}}; correct it, or make another file with keep-agent token')
    entries = [_entry(row, f"{file}: tokens[{number}]") for number, row in enumerate(content["tokens"])]
    names = [entry.access.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{file}: {twice!r} occurs twice; remove one")
    return entries


def _entry(row: Any, place: str) -> TokenEntry:
    if not isinstance(row, dict) or not KEYS <= set(row) <= KEYS | OPTIONAL:
        raise DataError(f"{place}: use the keys name, sha256 and agents, and expires for a token that expires")
    name, sha256, agents = row["name"], row["sha256"], row["agents"]
    if not isinstance(name, str) or not name:
        raise DataError(f"{place}: name={name!r} is not a text; give the token a name")
    if not isinstance(sha256, str) or len(sha256) != DIGEST or set(sha256) - set("0123456789abcdef"):
        raise DataError(f"{place}: sha256 is not {DIGEST} digits of 0-9 and a-f; make the token again")
    if agents != ALL and not (isinstance(agents, list) and all(isinstance(agent, str) for agent in agents)):
        raise DataError(f'{place}: agents={agents!r} is neither "{ALL}" nor a list of ids; use one of these')
    try:
        access = Access(name, None if agents == ALL else frozenset(map(safe_id, agents)))
        return TokenEntry(access, sha256, parse_time(row["expires"]) if "expires" in row else None)
    except ConfigError as error:
        raise DataError(f"{place}: {error}") from error


def parse_time(text: object) -> datetime:
    """Parse an ISO 8601 time with a time zone; return it in UTC. Raises ConfigError."""
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        if time is not None and time.tzinfo is not None:
            return time.astimezone(UTC)
    raise ConfigError(f"expires={text!r} is not a time with a zone; write it as 2030-01-31T12:00:00Z")


def write_tokens(file: Path, entries: Sequence[TokenEntry]) -> None:
    """Write the whole file atomically, readable by its owner only."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        agents = ALL if entry.access.agents is None else sorted(entry.access.agents)
        rows.append({"name": entry.access.name, "sha256": entry.digest, "agents": agents})
        if entry.expires is not None:
            rows[-1]["expires"] = entry.expires.isoformat().replace("+00:00", "Z")
    with replace_file(file, private=True) as stream:
        stream.write(json.dumps({"tokens": rows}, indent=1).encode() + b"\n")


def add_token(file: Path, new: TokenEntry, replace: bool = False) -> None:
    """Append a token to ``file``; ``replace``: remove an older one of the same name. Raises ConfigError, DataError."""
    name = new.access.name
    with _file_lock(file):
        entries = read_tokens(file) if file.exists() else []
        remaining = [entry for entry in entries if entry.access.name != name]
        if len(remaining) < len(entries) and not replace:
            raise ConfigError(f"{file} has a token {name!r}: give another name, or --replace to revoke the old one")
        write_tokens(file, [*remaining, new])


def remove_token(file: Path, name: str) -> None:
    """Revoke a token. Raises ConfigError, DataError."""
    with _file_lock(file):
        entries = read_tokens(file)
        remaining = [entry for entry in entries if entry.access.name != name]
        if len(remaining) == len(entries):
            known = ", ".join(entry.access.name for entry in entries) or "none"
            raise ConfigError(f"{file} has no token {name!r}; there are: {known}")
        write_tokens(file, remaining)


@contextmanager
def _file_lock(file: Path) -> Iterator[None]:
    """Hold a lock, if the file system has locks. The lock is on a second file, since ``file`` gets replaced."""
    if not file.name:
        raise ConfigError(f"the file {str(file)!r} has no name; give one, such as tokens.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
