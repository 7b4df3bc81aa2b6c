"""Access rules: which token may use which route. Every request and every websocket is decided here, and only here.

Routes whose path does not name the agent ask the `Access` that the decision left them (`Caller`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from keep_agent.server.auth.credentials import from_cookie, from_headers, in_query, into_cookie
from keep_agent.server.auth.origin import check_own_page, check_this_machine
from keep_agent.server.auth.revocable_websocket import Revocable
from keep_agent.server.auth.tokens import OPEN, Access, TokenSource
from keep_agent.server.chat.unsupported_routes import INSTEAD
from keep_agent.server.error_handlers import Refused, Unauthorized, answer_to

KEY = "keep_agent.access"  # where a request's scope holds its `Access`
NO_TOKEN = Access("no token", frozenset())
AGENTS, VIEWER = "/v1/agents", "/viewer"


class Need(Enum):
    """What a route asks for."""

    NOTHING = "no token"
    TOKEN = "any token; the answer is the same for each"
    NAMED = "any token; the route asks its `Access` for every agent that it acts for or tells of"
    AGENT = "a token for the agent in the path"
    ALL = "a token for all agents"


@dataclass(frozen=True)
class Rule:
    """``path`` as routes have it. ``browser``: the token may come as a cookie, for which ``?token=`` is exchanged."""

    path: str
    need: Need
    browser: bool = False


RULES = (
    Rule("/", Need.NOTHING),
    Rule("/healthz", Need.NOTHING),
    Rule("/openapi.json", Need.NOTHING),
    Rule("/metrics", Need.ALL),
    Rule("/v1/models", Need.TOKEN),
    Rule("/v1/models/{model:path}", Need.TOKEN),
    Rule("/v1/chat/completions", Need.NAMED),
    Rule("/v1/messages", Need.NAMED),
    Rule("/v1/messages/count_tokens", Need.TOKEN),
    *(Rule(f"{path}{rest}", Need.TOKEN) for path in INSTEAD for rest in ("", "/{rest:path}")),
    Rule(AGENTS, Need.NAMED),
    Rule(f"{AGENTS}/{{agent}}", Need.AGENT),
    Rule(f"{AGENTS}/{{agent}}/{{rest:path}}", Need.AGENT),
    Rule("/v1/scenarios", Need.NAMED),
    Rule("/v1/scenarios/{rest:path}", Need.NAMED),
    Rule(VIEWER, Need.ALL, browser=True),
    Rule(f"{VIEWER}/{{rest:path}}", Need.ALL, browser=True),
)
UNKNOWN = Rule("", Need.ALL)  # of a path without a rule


class Rules:
    """Finds the rule of a path, with the parameters in it, as routing does."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [(compile_path(rule.path)[0], rule) for rule in rules]

    def of(self, path: str) -> tuple[Rule, Mapping[str, str]]:
        for pattern, rule in self._rules:
            match = pattern.match(path)
            if match is not None:
                return rule, match.groupdict()
        return UNKNOWN, {}


class AccessMiddleware:
    """ASGI middleware. Puts an `Access` into the scope, or answers; also before a websocket is accepted."""

    def __init__(self, app: ASGIApp, tokens: TokenSource, rules: Iterable[Rule] = RULES) -> None:
        self._app, self._tokens, self._rules = app, tokens, Rules(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] in ("http", "websocket"):
            try:
                app = self._admitted(scope)
            except Refused as error:
                app = answer_to(scope["path"], error, closing=True)  # its body is not read
        await app(scope, receive, send)

    def _admitted(self, scope: Scope) -> ASGIApp:
        """The application for a request that is let in. Raises Refused."""
        headers = Headers(scope=scope)
        rule, parameters = self._rules.of(scope["path"])
        if self._tokens.open:
            check_this_machine(headers)
            scope[KEY] = OPEN
            return self._app
        if rule.need is Need.NOTHING:
            scope[KEY] = NO_TOKEN
            return self._app
        query_token = in_query(scope) if rule.browser else None
        token = query_token or _presented(rule, headers)
        decide = partial(self._decide, token, rule, parameters.get("agent", ""))
        scope[KEY] = decide()
        if query_token:
            return into_cookie(scope, query_token, VIEWER)
        return self._app if scope["type"] == "http" else Revocable(self._app, decide)

    def _decide(self, token: str, rule: Rule, agent: str) -> Access:
        """The access of a token that fulfils ``rule``. Raises Unauthorized, Forbidden."""
        access = self._tokens.find(token)
        if access is None:
            instead = f", or open {VIEWER}?token=TOKEN in a browser" if rule.browser else ""
            raise Unauthorized(f"no token that is valid here: send Authorization: Bearer TOKEN{instead}")
        if rule.need is Need.ALL:
            access.require_all()
        elif rule.need is Need.AGENT:
            access.require(agent)
        return access


def _presented(rule: Rule, headers: Headers) -> str:
    """The token of a request, "" if there is none. A cookie, which browsers add unasked, counts on own pages only."""
    token = from_headers(headers)
    if not token and rule.browser:
        token = from_cookie(headers)
        if token:
            check_own_page(headers)
    return token


async def access_of(connection: HTTPConnection) -> Access:
    """The access of a request that was let in. Without a thread: those may all be taken by slow requests."""
    return connection.scope[KEY]


Caller = Annotated[Access, Depends(access_of)]
