"""Access rules: the token that each route needs. A route with a `Caller` argument can make further checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.server.auth import credentials
from keep_agent.server.auth.tokens import OPEN, Access, Tokens
from keep_agent.server.error_handlers import Refused, Unauthorized, error_response

SCOPE_KEY = "keep_agent.access"  # key of a request's `Access` in its ASGI scope
NO_TOKEN = Access("no token", frozenset())
AGENTS, VIEWER = "/v1/agents", "/viewer"
POLICY_VIOLATION = 1008  # close code of RFC 6455 for a policy violation

REPLACEMENTS = {  # unsupported endpoints of OpenAI and Anthropic, each with the remedy for the error message
    "/v1/responses": "use POST /v1/chat/completions",
    "/v1/completions": "use POST /v1/agents/ID/generate, or POST /v1/chat/completions for messages",
    "/v1/complete": "use POST /v1/messages",
    "/v1/messages/batches": "use POST /v1/messages, once for each request",
    "/v1/embeddings": "use a server of an embedding model; this one generates text",
}


class Need(Enum):
    """Kind of token that a route needs."""

    NO_TOKEN = "no token"
    TOKEN = "any token; the answer does not depend on it"
    ROUTE = "any token; the route checks the token's `Access` to every agent that it uses or reports"
    AGENT = "a token for the agent in the path"
    ALL = "a token for all agents"


@dataclass(frozen=True)
class Rule:
    """Rule for routes that match ``path``: the token they need. ``browser``: accept a cookie that ``?token=`` set."""

    path: str
    need: Need
    browser: bool = False


SUBPATHS = ("", "/{rest:path}")  # a path itself, and all paths below it
ROUTES = ("/v1/chat/completions", "/v1/messages", AGENTS, *(f"/v1/scenarios{rest}" for rest in SUBPATHS))
RULES = (
    *(Rule(path, Need.NO_TOKEN) for path in ("/", "/healthz", "/openapi.json")),
    *(Rule(path, Need.TOKEN) for path in ("/v1/models", "/v1/models/{model:path}", "/v1/messages/count_tokens")),
    *(Rule(f"{path}{rest}", Need.TOKEN) for path in REPLACEMENTS for rest in SUBPATHS),
    *(Rule(path, Need.ROUTE) for path in ROUTES),
    *(Rule(f"{AGENTS}/{{agent}}{rest}", Need.AGENT) for rest in SUBPATHS),
    *(Rule(f"{VIEWER}{rest}", Need.ALL, browser=True) for rest in SUBPATHS),
    Rule("/metrics", Need.ALL),
)
DEFAULT_RULE = Rule("", Need.ALL)  # for paths without a rule
_compiled = cache(compile_path)


def rule_of(path: str, rules: Iterable[Rule] = RULES) -> tuple[Rule, Mapping[str, str]]:
    """Return the first rule that matches a path, and the path parameters."""
    for rule in rules:
        if match := _compiled(rule.path)[0].match(path):
            return rule, match.groupdict()
    return DEFAULT_RULE, {}


class AccessMiddleware:
    """ASGI middleware: stores the `Access` of a request or websocket in its scope, or rejects it."""

    def __init__(self, app: ASGIApp, tokens: Tokens, rules: Iterable[Rule] = RULES) -> None:
        self._app, self._tokens, self._rules = app, tokens, tuple(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] in ("http", "websocket"):
            try:
                app = self._authorize(scope)
            except Refused as error:
                app = error_response(scope["path"], error, closing=True)  # closing, since the body is not read
        await app(scope, receive, send)

    def _authorize(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        rule, parameters = rule_of(scope["path"], self._rules)
        if self._tokens.open:
            credentials.check_this_machine(headers)
        if self._tokens.open or rule.need is Need.NO_TOKEN:
            scope[SCOPE_KEY] = OPEN if self._tokens.open else NO_TOKEN
            return self._app
        query_token = credentials.in_query(scope) if rule.browser else None
        token = query_token or credentials.from_headers(headers)
        if not token and rule.browser:
            token = credentials.from_cookie(headers)
            if token:  # a page of another site could send the cookie, too (CSRF)
                credentials.check_own_page(headers)
        decide = partial(self._decide, token, rule, parameters.get("agent", ""))
        scope[SCOPE_KEY] = decide()
        if query_token:
            return credentials.into_cookie(scope, query_token, VIEWER)
        return self._app if scope["type"] == "http" else _with_token_checks(self._app, decide)

    def _decide(self, token: str, rule: Rule, agent: str) -> Access:
        access = self._tokens.find(token)
        if access is None:
            instead = f", or open {VIEWER}?token=TOKEN in a browser" if rule.browser else ""
            raise Unauthorized(f"the request has no valid token: send Authorization: Bearer TOKEN{instead}")
        if rule.need is Need.ALL:
            access.require_all()
        elif rule.need is Need.AGENT:
            access.require(agent)
        return access


def _with_token_checks(app: ASGIApp, decide: Callable[[], object]) -> ASGIApp:
    """Wrap ``app`` for one websocket: call ``decide`` at every message, and close the socket if it raises Refused."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        closed = False

        async def is_over(message: Message) -> bool:
            nonlocal closed
            if closed or message["type"] not in ("websocket.receive", "websocket.send"):
                return closed
            try:
                decide()
            except Refused:
                closed = True
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "the token is revoked"})
            return closed

        async def receiving() -> Message:
            message = await receive()
            return {"type": "websocket.disconnect", "code": POLICY_VIOLATION} if await is_over(message) else message

        async def sending(message: Message) -> None:
            if await is_over(message):
                raise OSError("the token is revoked")  # the error of a connection that the client has closed
            await send(message)

        await app(scope, receiving, sending)

    return checked


async def access_of(connection: HTTPConnection) -> Access:
    """Return the access of an admitted request. Async: FastAPI would run a sync function in its limited thread pool."""
    return connection.scope[SCOPE_KEY]


Caller = Annotated[Access, Depends(access_of)]
