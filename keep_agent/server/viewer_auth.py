"""Lets browsers, which cannot send a bearer token by themselves, into the viewer: the token once, then a cookie."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from keep_agent.server.problems import Forbidden, Refused, Unauthorized, answer_to
from keep_agent.server.tokens import Tokens

COOKIE, PARAMETER = "keep_agent_token", "token"


class ViewerAuth:
    """ASGI middleware in front of the `AuthMiddleware`. ``/viewer?token=TOKEN`` sets a cookie for the viewer alone.

    The viewer shows every agent, so the token has to be for all of them.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, path: str = "/viewer") -> None:
        self._app, self._tokens, self._path = app, tokens, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["type"] in ("http", "websocket") and self._is_inside(scope["path"])
        if not inside or self._tokens.open:
            await self._app(scope, receive, send)
            return
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        given = query.pop(PARAMETER, None)
        if given is not None and scope["type"] == "http":
            if self._tokens.find(given) is None:
                await answer_to(scope["path"], Unauthorized("no token of this server"))(scope, receive, send)
            else:
                await self._enter(scope, given, query)(scope, receive, send)
            return
        token = _cookie(Headers(scope=scope))
        found = None if token is None else self._tokens.find(token)
        if token is not None and found is not None and found.all:
            headers = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {token}".encode("latin-1"))]}
        elif found is not None:
            error: Refused = Forbidden(f"token {found.name!r} is for some agents only; the viewer shows all")
            await answer_to(scope["path"], error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_inside(self, path: str) -> bool:
        return path == self._path or path.startswith(f"{self._path}/")

    def _enter(self, scope: Scope, token: str, query: dict[str, str]) -> RedirectResponse:
        """To the same page without the token in its address, where it would stay in the browser's history."""
        rest = f"?{urlencode(query)}" if query else ""
        response = RedirectResponse(f"{scope['path']}{rest}", 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(COOKIE, token, path=self._path, httponly=True, samesite="strict", secure=secure)
        return response


def _cookie(headers: Headers) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value
