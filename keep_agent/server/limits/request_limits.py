"""Request limits: body size, arrival time, and a linear-time check of the JSON before it is parsed."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import partial

import anyio
import numpy as np
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.errors import ConfigError
from keep_agent.files import count_values
from keep_agent.server.error_handlers import CLOSE_HEADERS, Refused, TooLarge, TooSlow, error_response, status_of

MAX_REQUEST_LIMIT = 1 << 40  # maximum value of each limit of `RequestLimits`
DRAIN_SECONDS = 2.0  # seconds to keep reading a rejected body: many clients send all of it before they read an answer
JSON_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# matches up to the first escape that is a NUL or half of a surrogate pair
VALID_ESCAPES = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u(?:0000|[dD][89a-fA-F])).)*+",
    re.DOTALL,
)
NAN_OR_INFINITY = re.compile(rb"NaN|Infinity")
HUGE_NUMBER = re.compile(rb"\d{65}|[eE]\+?0*[1-9]\d\d")  # too many digits, or an exponent of three digits
NESTING_STEPS = np.zeros(256, np.int8)
NESTING_STEPS[list(b"[{")] = 1
NESTING_STEPS[list(b"]}")] = -1


@dataclass(frozen=True)
class RequestLimits:
    """Limits of all requests."""

    body_bytes: int = 1 << 20  # maximum bytes of a body
    body_seconds: float = 10.0  # maximum seconds until a body, or on ``large`` paths a part of it, arrives
    send_seconds: float = 30.0  # maximum seconds for a client to read a part of a response; slower ones are cut off
    depth: int = 32  # deepest nesting of JSON brackets
    requests: int = 64  # maximum concurrent planning requests; conversations have a separate limit of the same size
    per_agent: int = 5  # maximum concurrent requests of an agent: one runs, the others wait
    large: Mapping[str, int] = field(default_factory=dict)  # path pattern: maximum bytes of a non-JSON body

    def __post_init__(self) -> None:
        knobs = {knob.name: getattr(self, knob.name) for knob in fields(self) if knob.name != "large"}
        for name, limit in [*knobs.items(), *self.large.items()]:
            if not 0 < limit <= MAX_REQUEST_LIMIT:
                raise ConfigError(f"{name}={limit} does not work; give a number above 0, up to {MAX_REQUEST_LIMIT}")

    @property
    def values(self) -> int:
        """Maximum number of values in a JSON body: one per 5 bytes; in real requests a value takes 10 or more."""
        return max(1, self.body_bytes // 5)

    def large_bytes(self, path: str) -> int | None:
        return next((most for pattern, most in self.large.items() if fnmatchcase(path, pattern)), None)


class LimitsMiddleware:
    """ASGI middleware that limits request bodies: on ``large`` paths while the app reads, else before the app runs."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, large = Headers(scope=scope), self._limits.large_bytes(scope["path"])
        pending: list[Message] = []

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        try:
            _check_headers(headers, large or self._limits.body_bytes)
            if large is None:
                pending = await self._read(self._limits.body_bytes, receive)
        except Refused as error:
            await _refuse(scope, error, "expect" in headers, receive, send)
            return
        if pending or large is not None:  # otherwise the client has disconnected
            receiving = replay if large is None else _PartReader(receive, large, self._limits.body_seconds)
            await self._app(scope, receiving, partial(_send_within, self._limits.send_seconds, send))

    async def _read(self, most: int, receive: Receive) -> list[Message]:
        """Return a list with the whole body as one message; an empty list if the client has disconnected."""
        body, more, deadline = bytearray(), True, time.monotonic() + self._limits.body_seconds
        while more:
            message = await _receive_until(receive, deadline)
            if message["type"] == "http.disconnect":
                return []
            body += message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
            more = message.get("more_body", False)
        check_json(bytes(body), self._limits.depth, self._limits.values)
        return [{"type": "http.request", "body": bytes(body), "more_body": False}]


def _check_headers(headers: Headers, most: int) -> None:
    """Raise Refused for a body above ``most`` bytes, and if Content-Length and Transfer-Encoding are both present."""
    if "transfer-encoding" in headers and "content-length" in headers:  # could smuggle a request through a proxy
        raise Refused("the request has both Content-Length and Transfer-Encoding; send one of them")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > most:
        raise _too_large(most)


class _PartReader:
    """ASGI ``receive`` for a body in parts. Raises HTTPException, as FastAPI expects, if it is too large or slow."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size, self._is_complete = 0, False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            message = await _receive_until(self._receive, time.monotonic() + self._seconds)
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise _too_large(self._most)
        except Refused as error:
            raise HTTPException(status_of(error), str(error), dict(CLOSE_HEADERS)) from error
        self._is_complete = not message.get("more_body")
        return message


async def _send_within(seconds: float, send: Send, message: Message) -> None:
    try:
        with anyio.fail_after(seconds):
            await send(message)
    except TimeoutError:
        raise ClientDisconnect(f"the client read nothing for {seconds} s") from None


async def _receive_until(receive: Receive, deadline: float) -> Message:
    try:
        with anyio.fail_after(max(0.0, deadline - time.monotonic())):
            return await receive()
    except TimeoutError:
        raise TooSlow("the body did not arrive in time; send it without pauses") from None


async def _refuse(scope: Scope, error: Refused, expects_continue: bool, receive: Receive, send: Send) -> None:
    """Respond to a rejected request, then discard what its body still sends, and close the connection."""

    async def send_and_drain(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            if not isinstance(error, TooSlow) and not expects_continue:
                with anyio.move_on_after(DRAIN_SECONDS):
                    while (part := await receive())["type"] != "http.disconnect" and part.get("more_body"):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    await error_response(scope["path"], error, closing=True)(scope, receive, send_and_drain)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes; send less at once")


class BadJson(Refused):
    """Invalid JSON, or JSON that this server does not accept."""


def check_json(text: bytes, depth: int, values: int) -> None:
    """Raise BadJson for invalid UTF-8, NULs, half surrogates, NaN, huge numbers, deep nesting or too many values."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"the body is not UTF-8 (byte {error.start}); send it in UTF-8") from None
    if b"\0" in text:
        raise BadJson("the body holds a NUL byte; send JSON in UTF-8")
    if b"\\u" in text and VALID_ESCAPES.match(text).end() < len(text):  # type: ignore[union-attr]
        raise BadJson("a string holds a NUL or half of a surrogate pair; leave them out")
    without_strings = JSON_STRINGS.sub(b"", text)
    if NAN_OR_INFINITY.search(without_strings):
        raise BadJson("NaN and Infinity are not valid JSON; leave them out")
    if HUGE_NUMBER.search(without_strings):
        raise BadJson("a number has more than 64 digits, or an exponent of 100 or more; send smaller ones")
    nesting = np.cumsum(NESTING_STEPS[np.frombuffer(without_strings, np.uint8)], dtype=np.int32)
    if nesting.max(initial=0) > depth:
        raise BadJson(f"brackets are nested more than {depth} deep; send a flatter body")
    if count_values(text) > values and (count := count_values(without_strings)) > values:
        raise BadJson(f"the body holds {count} values, more than {values}; send less at once")
