"""Bearer tokens, and which agents each of them may use. Files hold digests only, never a token."""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from keep_agent.errors import ConfigError, DataError
from keep_agent.server.problems import Forbidden
from memory.agents import checked
from memory.disk.atomic import replacing

VARIABLE = "KEEP_AGENT_TOKEN"
ALL = "*"
DIGEST = 64  # hexadecimal digits of SHA-256
KEY = "keep_agent.access"  # where a request's scope holds its `Access`


@dataclass(frozen=True)
class Access:
    """Who asks, and which agents it may use; None: all."""

    name: str
    agents: frozenset[str] | None = None

    @property
    def all(self) -> bool:
        return self.agents is None

    @property
    def only(self) -> str | None:
        """The agent that is meant where none is named."""
        return next(iter(self.agents)) if self.agents is not None and len(self.agents) == 1 else None

    def may(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents

    def require(self, agent: str) -> str:
        """``agent``, or Forbidden: in the same words whether there is such an agent or not."""
        if not self.may(agent):
            raise Forbidden(f"token {self.name!r} is not for this agent; use one that is")
        return agent

    def require_all(self) -> None:
        if not self.all:
            raise Forbidden(f"token {self.name!r} is for some agents only; use one for all")


OPEN = Access("open")  # nobody has to show a token


@dataclass(frozen=True)
class Entry:
    """One token: the SHA-256 of it in hexadecimal digits, and what it is for."""

    access: Access
    digest: str

    def to_json(self) -> dict[str, Any]:
        agents = ALL if self.access.agents is None else sorted(self.access.agents)
        return {"name": self.access.name, "sha256": self.digest, "agents": agents}


@dataclass(frozen=True)
class Tokens:
    """Those a server knows. ``open``: there are none by intention, and everybody on this machine may ask."""

    entries: Sequence[Entry] = ()
    open: bool = False

    def find(self, token: str) -> Access | None:
        """Whose token it is. Takes as long whichever it is, and also if it is none."""
        asked, found = digest(token), None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, asked):
                found = entry.access
        return found


def load_tokens(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Tokens:
    """The tokens of a file and of the environment; without both the server is open. Raises ConfigError, DataError."""
    entries = [] if file is None else read_tokens(file)
    given = environ.get(VARIABLE)
    if given is not None:
        if not given.strip() or not given.isascii() or not given.isprintable() or " " in given:
            raise ConfigError(f"{VARIABLE} is empty or holds blanks: set it to a long random text, or unset it")
        entries.append(Entry(Access(VARIABLE), digest(given)))
    return Tokens(tuple(entries), open=file is None and given is None)


def read_tokens(file: Path) -> list[Entry]:
    """The entries of a file. Raises DataError, also where there is none: nobody may get in by a wrong path."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist; make it with: keep-agent token NAME --file {file}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no JSON file that can be read ({error}); make a new one") from error
    if not isinstance(content, dict) or not isinstance(content.get("tokens"), list):
        raise DataError(f'{file}: use {{"tokens": [...]}}; keep-agent token writes it')
    entries = [_entry(one, f"{file}: tokens[{number}]") for number, one in enumerate(content["tokens"])]
    names = [entry.access.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{file}: {twice!r} stands there twice; remove one")
    return entries


def _entry(row: Any, place: str) -> Entry:
    if not isinstance(row, dict) or set(row) != {"name", "sha256", "agents"}:
        raise DataError(f"{place}: use the keys name, sha256 and agents")
    name, found, agents = row["name"], row["sha256"], row["agents"]
    if not isinstance(name, str) or not name:
        raise DataError(f"{place}: name={name!r} is no text; give the token a name")
    if not isinstance(found, str) or len(found) != DIGEST or set(found) - set("0123456789abcdef"):
        raise DataError(f"{place}: sha256 is not {DIGEST} of 0-9 and a-f; make the token anew")
    if agents != ALL and not (isinstance(agents, list) and all(isinstance(one, str) for one in agents)):
        raise DataError(f'{place}: agents={agents!r} is neither "{ALL}" nor a list of ids; use one of these')
    try:
        return Entry(Access(name, None if agents == ALL else frozenset(map(checked, agents))), found)
    except ConfigError as error:
        raise DataError(f"{place}: {error}") from error


def write_tokens(file: Path, entries: Sequence[Entry]) -> None:
    """The whole file or nothing, for its owner's eyes only."""
    with replacing(file, private=True) as stream:
        rows = [entry.to_json() for entry in entries]
        stream.write(json.dumps({"tokens": rows}, indent=1).encode() + b"\n")


def add_token(file: Path, access: Access, token: str, replace: bool = False) -> None:
    """Put a token behind those of ``file``, or in the place of one of the same name. Raises ConfigError, DataError."""
    entries = read_tokens(file) if file.exists() else []
    others = [entry for entry in entries if entry.access.name != access.name]
    if len(others) < len(entries) and not replace:
        raise ConfigError(
            f"{file} has a token {access.name!r}: give another name, or --replace to make the old one void"
        )
    write_tokens(file, [*others, Entry(access, digest(token))])


def remove_token(file: Path, name: str) -> None:
    """Make a token void, for servers that start from now on. Raises ConfigError, DataError."""
    entries = read_tokens(file)
    others = [entry for entry in entries if entry.access.name != name]
    if len(others) == len(entries):
        known = ", ".join(entry.access.name for entry in entries) or "none"
        raise ConfigError(f"{file} has no token {name!r}; there are: {known}")
    write_tokens(file, others)


def make_token() -> str:
    """256 random bits, fit for a header."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def check_bind(host: str, tokens: Tokens) -> None:
    """Raises ConfigError for an address that others can reach while nobody needs a token, or that is none."""
    try:
        reached = list(_addresses(host))
    except OSError as error:
        raise ConfigError(f"host={host!r} is no address ({error}); use 127.0.0.1, or one of this machine") from error
    if tokens.open and not all(address.is_loopback for address in reached):
        raise ConfigError(
            f"host={host!r} can be reached from elsewhere, and nobody needs a token: set {VARIABLE}, or give a file "
            "of tokens (keep-agent token), or use host 127.0.0.1"
        )


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """All that a name stands for; an empty one stands for every address there is."""
    for found in socket.getaddrinfo(host or "0.0.0.0", None, proto=socket.IPPROTO_TCP):
        yield ipaddress.ip_address(str(found[4][0]).partition("%")[0])


def is_loopback(name: str) -> bool:
    """A name for this very machine, without looking it up."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in ("localhost", "localhost.")


def access_of(connection: HTTPConnection) -> Access:
    """Whose request it is; the middleware has looked at its token."""
    return connection.scope[KEY]


Caller = Annotated[Access, Depends(access_of)]
