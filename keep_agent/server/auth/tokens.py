"""Bearer tokens, and which agents each of them may use. Only digests are kept, never a token."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Protocol

from keep_agent.errors import ConfigError
from keep_agent.server.address import is_local
from keep_agent.server.error_handlers import Forbidden

VARIABLE = "KEEP_AGENT_TOKEN"


@dataclass(frozen=True)
class Access:
    """The name of a token, and the agents it may use; None: all."""

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
        """Raises Forbidden."""
        if not self.all:
            raise Forbidden(f"token {self.name!r} is for some agents only; use one for all")


OPEN = Access("open")  # of every request to a server without tokens


@dataclass(frozen=True)
class Entry:
    """One token: the SHA-256 of it in hexadecimal digits, what it is for, and when it becomes void, if ever."""

    access: Access
    digest: str
    expires: datetime | None = None

    @property
    def expired(self) -> bool:
        return self.expires is not None and datetime.now(UTC) >= self.expires


class TokenSource(Protocol):
    """The tokens that are valid now."""

    @property
    def open(self) -> bool:
        """No token is needed: there are none by intention."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    def find(self, token: str) -> Access | None: ...


@dataclass(frozen=True)
class Tokens:
    """Tokens that stay as they are. ``open``: there are none by intention, and everybody on this machine may ask."""

    entries: Sequence[Entry] = ()
    open: bool = False

    def find(self, token: str) -> Access | None:
        """The access of a token that is known and has not expired. Takes as long for any token, known or not."""
        asked, found = digest(token), None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, asked) and not entry.expired:
                found = entry.access
        return found


def make_token() -> str:
    """256 random bits, fit for a header."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def check_bind(host: str, tokens: TokenSource) -> None:
    """Raises ConfigError for an address that others can reach while no token is needed, or that is none."""
    if not is_local(host) and tokens.open:
        raise ConfigError(
            f"host={host!r} can be reached from elsewhere, and no token is needed: set {VARIABLE}, or give a file "
            "of tokens (keep-agent token), or use host 127.0.0.1"
        )
