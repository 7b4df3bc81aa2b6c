"""Credentials of a request: its token (header, cookie or query), and origin checks against pages of other sites."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import Scope

from keep_agent.server.address import is_loopback
from keep_agent.server.error_handlers import Forbidden

COOKIE, PARAMETER = "keep_agent_token", "token"
OTHER_SITE = "this is a page of another site; only pages of this server may send requests without a token"


def from_headers(headers: Headers) -> str:
    """Return the bearer token, else the header ``x-api-key`` (of Anthropic's clients), else an empty string."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()


def from_cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def in_query(scope: Scope) -> str | None:
    """Return the token in a URL's query, if any; None for websockets."""
    return dict(_query(scope)).get(PARAMETER) if scope["type"] == "http" else None


def into_cookie(scope: Scope, token: str, path: str) -> RedirectResponse:
    """Return a redirect that sets the cookie. Its URL lacks the token, which thus stays out of the browser history."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != PARAMETER])
    response = RedirectResponse(f"{scope['path']}?{rest}" if rest else scope["path"], 303)
    secure = scope.get("scheme") == "https"
    response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict", secure=secure)
    return response


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def check_this_machine(headers: Headers) -> None:
    """Raise Forbidden for requests of other sites' pages, and if ``Host`` names another machine (DNS rebinding)."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(_split(f"//{hosts[0]}").hostname or ""):
        raise Forbidden("without tokens this server answers to localhost only: use that name, or set up tokens")
    check_own_page(headers)


def check_own_page(headers: Headers) -> None:
    """Raise Forbidden if another site's page sent the request (``Origin``, ``Sec-Fetch-Site``). Links are allowed."""
    site = headers.get("host", "").lower()
    if any(_split(origin).netloc.lower() != site for origin in headers.getlist("origin")):
        raise Forbidden(f"{OTHER_SITE} (a reverse proxy has to forward the Host header)")
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        raise Forbidden(OTHER_SITE)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
