"""Limits of a request: its size, how long it takes to arrive, how deep its JSON goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import partial

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.errors import ConfigError
from keep_agent.server.error_handlers import CLOSING, Refused, TooLarge, TooSlow, answer_to, status_of
from keep_agent.server.limits.json_scan import check_json

MOST = 1 << 40  # of any limit
FAREWELL = 2.0  # seconds for which a refused body is still taken, and thrown away: else clients miss the answer


@dataclass(frozen=True)
class Limits:
    """Of all requests.

    :param body_bytes: of a request's body; ``large`` has other numbers for some paths (patterns with ``*``), whose
        bodies are not looked at before they are parsed, and are handed on as they come
    :param body_seconds: in which a body has to arrive; one of a ``large`` path may take as long between two parts
    :param send_seconds: in which a client has to take a part of its answer; else the connection ends
    :param depth: brackets within brackets in JSON
    :param requests: in the works at once, of planning and of conversations each; more are told to come again later
    :param per_agent: of them for one agent: one is served, the others wait
    """

    body_bytes: int = 1 << 20
    body_seconds: float = 10.0
    send_seconds: float = 30.0
    depth: int = 32
    requests: int = 64
    per_agent: int = 5
    large: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        knobs = {knob.name: getattr(self, knob.name) for knob in fields(self) if knob.name != "large"}
        for name, limit in [*knobs.items(), *self.large.items()]:
            if not 0 < limit <= MOST:
                raise ConfigError(f"{name}={limit} does not work; give a number above 0, up to {MOST}")

    @property
    def values(self) -> int:
        """In JSON, of all lists and objects together. Those of robots and clients take twice as many bytes, or more."""
        return max(1, self.body_bytes // 5)

    def most(self, path: str) -> int:
        return next((most for pattern, most in self.large.items() if fnmatchcase(path, pattern)), self.body_bytes)

    def is_large(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.large)


class LimitsMiddleware:
    """ASGI middleware: reads a body within its limits and hands it on, or answers why not."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], Headers(scope=scope)
        try:
            _check_framing(headers)
            self._check_length(path, headers)
            if self._limits.is_large(path):
                receiving = _Counted(receive, self._limits.most(path), self._limits.body_seconds)
            else:
                receiving = _Replay(await self._read(path, receive), receive)
        except Refused as error:
            await _refuse(scope, error, "expect" in headers, receive, send)
            return
        if receiving.left:
            await self._app(scope, receiving, partial(_send_within, self._limits.send_seconds, send))

    def _check_length(self, path: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > self._limits.most(path):
            raise _too_large(self._limits.most(path))

    async def _read(self, path: str, receive: Receive) -> list[Message]:
        """The messages of a whole body; none if the client went away."""
        messages: list[Message] = []
        size, ends = 0, time.monotonic() + self._limits.body_seconds
        while not messages or messages[-1].get("more_body"):
            message = await _receive_until(receive, ends)
            if message["type"] == "http.disconnect":
                return []
            size += len(message.get("body", b""))
            if size > self._limits.most(path):
                raise _too_large(self._limits.most(path))
            messages.append(message)
        body = b"".join(message.get("body", b"") for message in messages)
        check_json(body, self._limits.depth, self._limits.values)
        return [{"type": "http.request", "body": body, "more_body": False}]


def _check_framing(headers: Headers) -> None:
    """Raises Refused where proxies and this server may disagree about where the body ends (request smuggling)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise Refused("Content-Length and Transfer-Encoding are both there; send one of them")


class _Replay:
    """Receives what was read already, and then what comes."""

    def __init__(self, messages: list[Message], receive: Receive) -> None:
        self.left, self._receive = messages, receive

    async def __call__(self) -> Message:
        return self.left.pop() if self.left else await self._receive()


class _Counted:
    """Receives a body part by part. What is too much, or too slow, is an HTTPException, which routes let through."""

    left = True

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size, self._ended = 0, False

    async def __call__(self) -> Message:
        if self._ended:
            return await self._receive()
        try:
            message = await _receive_until(self._receive, time.monotonic() + self._seconds)
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise _too_large(self._most)
        except Refused as error:
            raise HTTPException(status_of(error), str(error), dict(CLOSING)) from error
        self._ended = not message.get("more_body")
        return message


async def _send_within(seconds: float, send: Send, message: Message) -> None:
    try:
        with anyio.fail_after(seconds):
            await send(message)
    except TimeoutError:
        raise ClientDisconnect(f"the client took nothing for {seconds} s") from None


async def _receive_until(receive: Receive, ends: float) -> Message:
    try:
        with anyio.fail_after(max(0.0, ends - time.monotonic())):
            return await receive()
    except TimeoutError:
        raise TooSlow("the body did not arrive in time; send it at once") from None


async def _refuse(scope: Scope, error: Refused, expects: bool, receive: Receive, send: Send) -> None:
    """Answer and end the connection, for the rest of the body may still come."""

    async def lingering(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            if not isinstance(error, TooSlow) and not expects:
                await _discard(receive)
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    await answer_to(scope["path"], error, closing=True)(scope, receive, lingering)


async def _discard(receive: Receive) -> None:
    """Let a client that only listens when it has said all say so, for a while."""
    with anyio.move_on_after(FAREWELL):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes; send less at once")
