"""Origin checks: requests that web pages of other sites send through a browser on this machine."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from keep_agent.server.address import is_loopback
from keep_agent.server.error_handlers import Forbidden

OTHER_SITE = "this is a page of another site; only pages of this server may ask without sending a token themselves"
BEHIND_PROXY = "(a reverse proxy has to pass the Host header on)"


def check_this_machine(headers: Headers) -> None:
    """Let in programs on this machine and pages of this server; raises Forbidden for others.

    A foreign name in ``Host`` is one that was made to point here (DNS rebinding).
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(_name(hosts[0])):
        raise Forbidden("without tokens this server answers to localhost only: use that name, or set up tokens")
    check_own_page(headers)


def check_own_page(headers: Headers) -> None:
    """Raises Forbidden for what a page of another site asks. ``Origin`` names the page, if a page asks."""
    own = headers.get("host", "").lower()
    if any(_site(origin) != own for origin in headers.getlist("origin")):
        raise Forbidden(f"{OTHER_SITE} {BEHIND_PROXY}")
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        raise Forbidden(OTHER_SITE)


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
