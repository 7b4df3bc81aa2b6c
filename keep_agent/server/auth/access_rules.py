"""Access rules: the token that each route needs. All requests and websockets are checked by `AccessMiddleware`.

Routes whose path does not name the agent check the `Access` that the middleware stored (`Caller`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.server.auth.credentials import (
    check_own_page,
    check_this_machine,
    from_cookie,
    from_headers,
    in_query,
    into_cookie,
)
from keep_agent.server.auth.tokens import OPEN, Access, TokenSource
from keep_agent.server.chat.unsupported_routes import INSTEAD
from keep_agent.server.error_handlers import Refused, Unauthorized, answer_to

KEY = "keep_agent.access"  # of a request's `Access` in its scope
NO_TOKEN = Access("no token", frozenset())
AGENTS, VIEWER = "/v1/agents", "/viewer"
POLICY = 1008  # close code of RFC 6455 for a policy violation


class Need(Enum):
    """Token that a route needs."""

    NO_TOKEN = "no token"
    TOKEN = "any token; the answer is the same for each"
    ROUTE = "any token; the route checks its `Access` for every agent that it uses or reports"
    AGENT = "a token for the agent in the path"
    ALL = "a token for all agents"


@dataclass(frozen=True)
class Rule:
    """Need of the routes under ``path``. ``browser``: also accept a cookie, which ``?token=`` is exchanged for."""

    path: str
    need: Need
    browser: bool = False


RULES = (
    Rule("/", Need.NO_TOKEN),
    Rule("/healthz", Need.NO_TOKEN),
    Rule("/openapi.json", Need.NO_TOKEN),
    Rule("/metrics", Need.ALL),
    Rule("/v1/models", Need.TOKEN),
    Rule("/v1/models/{model:path}", Need.TOKEN),
    Rule("/v1/chat/completions", Need.ROUTE),
    Rule("/v1/messages", Need.ROUTE),
    Rule("/v1/messages/count_tokens", Need.TOKEN),
    *(Rule(f"{path}{rest}", Need.TOKEN) for path in INSTEAD for rest in ("", "/{rest:path}")),
    Rule(AGENTS, Need.ROUTE),
    Rule(f"{AGENTS}/{{agent}}", Need.AGENT),
    Rule(f"{AGENTS}/{{agent}}/{{rest:path}}", Need.AGENT),
    Rule("/v1/scenarios", Need.ROUTE),
    Rule("/v1/scenarios/{rest:path}", Need.ROUTE),
    Rule(VIEWER, Need.ALL, browser=True),
    Rule(f"{VIEWER}/{{rest:path}}", Need.ALL, browser=True),
)
UNKNOWN = Rule("", Need.ALL)  # for paths without a rule


class Rules:
    """Rules by path, matched as routing does."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [(compile_path(rule.path)[0], rule) for rule in rules]

    def of(self, path: str) -> tuple[Rule, Mapping[str, str]]:
        """Return the rule of a path and the path's parameters."""
        for pattern, rule in self._rules:
            match = pattern.match(path)
            if match is not None:
                return rule, match.groupdict()
        return UNKNOWN, {}


class AccessMiddleware:
    """ASGI middleware: stores an `Access` in the scope, or refuses; websockets before they are accepted."""

    def __init__(self, app: ASGIApp, tokens: TokenSource, rules: Iterable[Rule] = RULES) -> None:
        self._app, self._tokens, self._rules = app, tokens, Rules(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] in ("http", "websocket"):
            try:
                app = self._admitted(scope)
            except Refused as error:
                app = answer_to(scope["path"], error, closing=True)  # the request's body is not read
        await app(scope, receive, send)

    def _admitted(self, scope: Scope) -> ASGIApp:
        """Return the application for an admitted request. Raises Refused."""
        headers = Headers(scope=scope)
        rule, parameters = self._rules.of(scope["path"])
        if self._tokens.open:
            check_this_machine(headers)
            scope[KEY] = OPEN
            return self._app
        if rule.need is Need.NO_TOKEN:
            scope[KEY] = NO_TOKEN
            return self._app
        query_token = in_query(scope) if rule.browser else None
        token = query_token or _token(rule, headers)
        decide = partial(self._decide, token, rule, parameters.get("agent", ""))
        scope[KEY] = decide()
        if query_token:
            return into_cookie(scope, query_token, VIEWER)
        return self._app if scope["type"] == "http" else Revocable(self._app, decide)

    def _decide(self, token: str, rule: Rule, agent: str) -> Access:
        """Return the access of a token that fulfils ``rule``. Raises Unauthorized, Forbidden."""
        access = self._tokens.find(token)
        if access is None:
            instead = f", or open {VIEWER}?token=TOKEN in a browser" if rule.browser else ""
            raise Unauthorized(f"no token that is valid here: send Authorization: Bearer TOKEN{instead}")
        if rule.need is Need.ALL:
            access.require_all()
        elif rule.need is Need.AGENT:
            access.require(agent)
        return access


def _token(rule: Rule, headers: Headers) -> str:
    """Return the token of a request, else "". Browsers send cookies by themselves: only own pages may use them."""
    token = from_headers(headers)
    if not token and rule.browser:
        token = from_cookie(headers)
        if token:
            check_own_page(headers)
    return token


class Revocable:
    """ASGI application for one websocket: ``app``, closed as soon as ``decide`` raises Refused at a message."""

    def __init__(self, app: ASGIApp, decide: Callable[[], object]) -> None:
        self._app, self._decide = app, decide

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        closed = False

        async def is_over(message: Message) -> bool:
            nonlocal closed
            if closed or message["type"] not in ("websocket.receive", "websocket.send"):
                return closed
            try:
                self._decide()
            except Refused:
                closed = True
                await send({"type": "websocket.close", "code": POLICY, "reason": "the token is void"})
            return closed

        async def receiving() -> Message:
            message = await receive()
            return {"type": "websocket.disconnect", "code": POLICY} if await is_over(message) else message

        async def sending(message: Message) -> None:
            if await is_over(message):
                raise OSError("the token is void")  # the error of a closed connection
            await send(message)

        await self._app(scope, receiving, sending)


async def access_of(connection: HTTPConnection) -> Access:
    """Return the access of an admitted request. Async, so that it needs no thread: slow requests may hold them all."""
    return connection.scope[KEY]


Caller = Annotated[Access, Depends(access_of)]
