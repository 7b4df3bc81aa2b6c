"""Wire protocol of the simulator: its address, and one POST over one connection within a hard time limit.

A socket's own timeout restarts with every byte that arrives; here all operations share one clock.
"""

from __future__ import annotations

import io
import socket
from contextlib import closing
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from envs.clock import Clock
from keep_agent.errors import ConfigError

CHUNK = 1 << 16  # bytes
DEFAULT_PORT = 8080  # the simulator's default port


class Address(NamedTuple):
    """The parts of http://HOST:PORT/PATH; ``host`` is without the brackets around an IPv6 address."""

    host: str
    port: int
    path: str

    @property
    def header(self) -> str:
        """Value of the HTTP header Host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse http://HOST:PORT, the port optional. Raises ConfigError for anything else."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        address = Address(host, parts.port or DEFAULT_PORT, quote(parts.path or "/", safe="/%"))
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the address of a simulator ({error}); use http://HOST:PORT") from error
    if parts.scheme != "http" or not host:
        raise ConfigError(f"{url!r} is not the address of a simulator; use http://HOST:PORT")
    return address


class HttpReply(NamedTuple):
    """Status and body of an HTTP response."""

    status: int
    body: bytes


class TooLarge(HTTPException):
    """A response larger than the limit."""


def connect(address: Address, clock: Clock) -> socket.socket:
    """Connect to the first address of the host that accepts. Raises OSError, for example TimeoutError.

    The clock does not limit the system's look-up of a host name; a numeric address needs no look-up.
    """
    failure = OSError(f"{address.host} has no address")
    for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            return socket.create_connection(info[4][:2], clock.timeout())
        except OSError as error:
            failure = error
    raise failure


def post(connection: socket.socket, address: Address, body: bytes, clock: Clock, limit: int) -> HttpReply:
    """Send JSON, read the response to its end and close the connection.

    :raises OSError: TimeoutError at the clock's limit, others for a broken connection
    :raises HTTPException: IncompleteRead for a body that ends early, TooLarge for a response of more than ``limit``
        bytes, others for invalid HTTP
    """
    with closing(connection):
        connection.settimeout(clock.timeout())
        connection.sendall(_head(address, len(body)) + body)  # sendall applies the timeout to the whole message
        response = HTTPResponse(_BoundedSocket(connection, clock, limit), method="POST")  # type: ignore[arg-type]
        response.begin()
        return HttpReply(response.status, _read(response, limit))


def _head(address: Address, length: int) -> bytes:
    lines = (
        f"POST {address.path} HTTP/1.1", f"Host: {address.header}", "Content-Type: application/json",
        "Accept: application/json", f"Content-Length: {length}", "Connection: close",
    )  # fmt: skip
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


def _read(response: HTTPResponse, limit: int) -> bytes:
    """Read the body. ``response.length`` is the number of missing bytes, None if unknown."""
    if (response.length or 0) > limit:
        raise TooLarge(f"an answer of more than {limit} bytes")
    body = b"".join(iter(lambda: response.read(CHUNK), b""))
    if response.length:
        raise IncompleteRead(b"", response.length)
    return body


class _BoundedSocket(io.RawIOBase):
    """Connection that is read until the clock's limit, up to ``limit`` bytes; HTTPResponse uses it as a socket."""

    def __init__(self, connection: socket.socket, clock: Clock, limit: int) -> None:
        self._connection = connection
        self._clock = clock
        self._limit, self._received = limit, 0

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        self._connection.settimeout(self._clock.timeout())
        count = self._connection.recv_into(buffer)
        self._received += count
        if self._received > self._limit:
            raise TooLarge(f"an answer of more than {self._limit} bytes")
        return count
