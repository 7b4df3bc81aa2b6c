"""Credentials of a request: a token in a header, or in the cookie that a browser gets for ``?token=``."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import Scope

COOKIE, PARAMETER = "keep_agent_token", "token"


def from_headers(headers: Headers) -> str:
    """The bearer token, or that of ``x-api-key``, which Anthropic's clients send; "" if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key", "").strip()


def from_cookie(headers: Headers) -> str:
    """The cookie's token; "" if there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def in_query(scope: Scope) -> str | None:
    """The token in the address of a page; a websocket has none there."""
    if scope["type"] != "http":
        return None
    return dict(_query(scope)).get(PARAMETER)


def into_cookie(scope: Scope, token: str, path: str) -> RedirectResponse:
    """To the same page without the token in its address, where it would stay in the browser's history."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != PARAMETER])
    response = RedirectResponse(f"{scope['path']}?{rest}" if rest else scope["path"], 303)
    secure = scope.get("scheme") == "https"
    response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict", secure=secure)
    return response


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
