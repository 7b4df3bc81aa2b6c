"""Bearer tokens, each with the agents that it may use. Only digests of the tokens are stored."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from keep_agent.errors import ConfigError
from keep_agent.server.address import is_local
from keep_agent.server.error_handlers import Forbidden

TOKEN_VARIABLE = "KEEP_AGENT_TOKEN"


@dataclass(frozen=True)
class Access:
    """Access of a token: its name, and the agents that it may use (None: all)."""

    name: str
    agents: frozenset[str] | None = None

    @property
    def all(self) -> bool:
        return self.agents is None

    @property
    def only_agent(self) -> str | None:
        return next(iter(self.agents)) if self.agents is not None and len(self.agents) == 1 else None

    def may(self, agent: str) -> bool:
        return self.agents is None or agent in self.agents

    def require(self, agent: str) -> str:
        """Return ``agent``, or raise Forbidden with a message that does not depend on whether the agent exists."""
        if not self.may(agent):
            raise Forbidden(f"token {self.name!r} is not for this agent; use one that is")
        return agent

    def require_all(self) -> None:
        if not self.all:
            raise Forbidden(f"token {self.name!r} is for some agents only; use one for all")


OPEN = Access("open")  # access of all requests to a server without tokens


@dataclass(frozen=True)
class TokenEntry:
    """One token: its access, its SHA-256 in hexadecimal digits, and its expiry time, if any."""

    access: Access
    digest: str
    expires: datetime | None = None

    @property
    def expired(self) -> bool:
        return self.expires is not None and datetime.now(UTC) >= self.expires


@dataclass(frozen=True)
class Tokens:
    """Valid tokens. ``open``: the server runs without tokens, and all programs on this machine have access."""

    entries: Sequence[TokenEntry] = ()
    open: bool = False

    def find(self, token: str) -> Access | None:
        """Return the access of a token, in constant time; None if it is unknown or has expired."""
        target, access = digest(token), None
        for entry in self.entries:
            if hmac.compare_digest(entry.digest, target) and not entry.expired:
                access = entry.access
        return access


def digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def check_bind(host: str, tokens: Tokens) -> None:
    """Raise ConfigError for an invalid address, and for one that other machines can reach if no token is needed."""
    if not is_local(host) and tokens.open:
        raise ConfigError(
            f"host={host!r} can be reached from other machines, and no token is needed: set {TOKEN_VARIABLE}, or give "
            "a file of tokens (keep-agent token), or use host 127.0.0.1"
        )
