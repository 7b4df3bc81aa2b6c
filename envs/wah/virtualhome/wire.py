"""One POST over one connection, within a time that nothing the server does can stretch.

A socket's own timeout starts anew with every byte that arrives; here all that is done gets what one clock has left.
"""

from __future__ import annotations

import io
import socket
from contextlib import closing
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import NamedTuple

from envs.clock import Clock
from envs.wah.virtualhome.address import Address

CHUNK = 1 << 16  # bytes


class Reply(NamedTuple):
    """What came back, as it came."""

    status: int
    body: bytes


class TooLarge(HTTPException):
    """An answer of more bytes than anyone wants."""


def connect(address: Address, clock: Clock) -> socket.socket:
    """A connection to the first of the host's addresses that takes one. Raises TimeoutError or another OSError.

    The system looks a name up in its own time; numbers such as 127.0.0.1 need none.
    """
    failure = OSError(f"{address.host} has no address")
    for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            return socket.create_connection(info[4][:2], clock.left())
        except OSError as error:
            failure = error
    raise failure


def post(connection: socket.socket, address: Address, body: bytes, clock: Clock, limit: int) -> Reply:
    """Send JSON, read the answer to its end and close the connection.

    Raises TimeoutError, another OSError for a broken connection, IncompleteRead for a body that ends early, TooLarge
    for an answer of more than ``limit`` bytes, and other HTTPExceptions for what is no HTTP.
    """
    with closing(connection):
        connection.settimeout(clock.left())
        connection.sendall(_head(address, len(body)) + body)  # its timeout is for all of it
        response = HTTPResponse(_Incoming(connection, clock, limit), method="POST")  # type: ignore[arg-type]
        response.begin()
        return Reply(response.status, _read(response, limit))


def _head(address: Address, length: int) -> bytes:
    lines = (
        f"POST {address.path} HTTP/1.1",
        f"Host: {address.header}",
        "Content-Type: application/json",
        "Accept: application/json",
        f"Content-Length: {length}",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


def _read(response: HTTPResponse, limit: int) -> bytes:
    """The body. ``length`` is what a response still expects, None if it does not know."""
    if (response.length or 0) > limit:
        raise TooLarge(f"an answer of more than {limit} bytes")
    body = b"".join(iter(lambda: response.read(CHUNK), b""))
    if response.length:
        raise IncompleteRead(b"", response.length)
    return body


class _Incoming(io.RawIOBase):
    """The bytes of a connection, as long as the clock runs and up to a limit; what HTTPResponse takes for a socket."""

    def __init__(self, connection: socket.socket, clock: Clock, limit: int) -> None:
        self._connection = connection
        self._clock = clock
        self._limit, self._received = limit, 0

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        self._connection.settimeout(self._clock.left())
        count = self._connection.recv_into(buffer)
        self._received += count
        if self._received > self._limit:
            raise TooLarge(f"an answer of more than {self._limit} bytes")
        return count
