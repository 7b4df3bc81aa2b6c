"""Addresses that commands listen on: socket, URL, and whether other machines can reach them."""

from __future__ import annotations

import ipaddress
import socket

from keep_agent.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError for an address that is in use or invalid."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}:{port} cannot be used ({error}); use another port, or 0 for any") from None


def address_of(listener: socket.socket, host: str) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def is_local(host: str) -> bool:
    """Return whether only this machine can reach ``host``. Raises ConfigError for a name that cannot be resolved."""
    try:
        infos = socket.getaddrinfo(host or "0.0.0.0", None, proto=socket.IPPROTO_TCP)  # "" means all interfaces
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host={host!r} is not an address ({error}); use one, such as 127.0.0.1") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in infos)


def is_loopback(name: str) -> bool:
    """Return whether a name is a loopback name or address, without resolving it."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() in ("localhost", "localhost.")
