"""Where a simulator listens."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlsplit

from keep_agent.errors import ConfigError

DEFAULT_PORT = 8080  # the simulator's own, without -http-port


class Address(NamedTuple):
    """The parts of http://HOST:PORT/PATH; ``host`` has no brackets."""

    host: str
    port: int
    path: str

    @property
    def header(self) -> str:
        """As HTTP's field Host has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(url: str) -> Address:
    """Raises ConfigError for what is no http://HOST:PORT; the port may be left out."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        address = Address(host, parts.port or DEFAULT_PORT, quote(parts.path or "/", safe="/%"))
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a simulator ({error}); use http://HOST:PORT") from error
    if parts.scheme != "http" or not host:
        raise ConfigError(f"{url!r} is no address of a simulator; use http://HOST:PORT")
    return address
