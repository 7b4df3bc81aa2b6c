"""Addresses a command listens on: its socket, and whether other machines can reach it. Needs no extra."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

from keep_agent.errors import ConfigError


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, to be had before anything slow begins. Raises ConfigError for an address that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}:{port} cannot be had ({error}); use another port, or 0 for any") from None


def address_of(listener: socket.socket, host: str) -> str:
    """The URL of a socket that listens on ``host``."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def is_local(host: str) -> bool:
    """Can only this machine reach all that ``host`` stands for? Raises ConfigError for a name that is no address."""
    try:
        return all(address.is_loopback for address in _addresses(host))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host={host!r} is no address ({error}); use 127.0.0.1, or one of this machine") from error


def is_loopback(name: str) -> bool:
    """Is it a name for this machine? It is not looked up."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in ("localhost", "localhost.")


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """All that a name stands for; an empty one stands for every address there is."""
    for found in socket.getaddrinfo(host or "0.0.0.0", None, proto=socket.IPPROTO_TCP):
        yield ipaddress.ip_address(str(found[4][0]).partition("%")[0])
