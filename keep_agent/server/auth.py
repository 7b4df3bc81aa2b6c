"""Who comes in: a token is asked for before anything is read; without tokens, no web page may drive the server."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from keep_agent.server.problems import CLOSING, Forbidden, Refused, Unauthorized, answer, kind_of, status_of
from keep_agent.server.tokens import KEY, OPEN, Access, Tokens, is_loopback

NOBODY = Access("nobody", frozenset())
ANSWERED = ("http", "websocket")


class AuthMiddleware:
    """ASGI middleware. Puts an `Access` into the scope, or answers; also before a WebSocket is accepted.

    :param public: paths that need no token
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, public: Collection[str] = ()) -> None:
        self._app, self._tokens, self._public = app, tokens, frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ANSWERED:
            try:
                scope[KEY] = self._enter(scope["path"], Headers(scope=scope))
            except Refused as error:
                headers = {**error.headers, **CLOSING}  # its body is not read
                text = answer(scope["path"], status_of(error), kind_of(error), str(error), headers)
                await text(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _enter(self, path: str, headers: Headers) -> Access:
        if self._tokens.open:
            check_page(headers)
            return OPEN
        if path in self._public:
            return NOBODY
        found = self._tokens.find(shown(headers))
        if found is None:
            raise Unauthorized("no token of this server: send Authorization: Bearer TOKEN")
        return found


def shown(headers: Headers) -> str:
    """The token of a request; Anthropic's clients have a header of their own for it."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key", "").strip()


def check_page(headers: Headers) -> None:
    """Raises Forbidden for what only a web page of another site would send: a browser on this machine reaches us, too.

    A foreign name in ``Host`` is one that was made to point here (DNS rebinding). ``Origin`` names the page.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(_name(hosts[0])):
        raise Forbidden("without tokens this server answers to localhost only: use that name, or set up tokens")
    own = hosts[0].lower()
    if any(_site(origin) != own for origin in headers.getlist("origin")):
        raise Forbidden("this is a page of another site; without tokens only pages of this server may ask")
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        raise Forbidden("this is a page of another site; without tokens only pages of this server may ask")


def _site(origin: str) -> str:
    """Name and port; "" for what cannot be read."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """Without the port; "" for what cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
