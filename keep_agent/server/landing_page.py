"""Landing page: a server's first page, which says what it is and what there is."""

from __future__ import annotations

from html import escape

from fastapi import APIRouter
from starlette.responses import HTMLResponse

import keep_agent
from keep_agent.server.app import DESCRIPTION
from keep_agent.server.auth.access_rules import VIEWER

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>KEEP Agent</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>
<h1>KEEP Agent {version}</h1>
<p>{about}</p>
<ul>
{links}
</ul>
<p>Where the server has tokens, programs send <code>Authorization: Bearer TOKEN</code>{browser}.</p>
</html>
"""
API = f'<li><a href="{DESCRIPTION}">{DESCRIPTION}</a>: the API, with examples (OpenAPI)</li>'
PAGES = f'<li><a href="{VIEWER}/">{VIEWER}/</a>: the steps of every agent</li>'
BROWSER = f", and browsers open <code>{VIEWER}?token=TOKEN</code> once, with a token for all agents"


def landing_router(viewer: bool) -> APIRouter:
    """``/``; ``viewer``: there is one to lead to."""
    links, browser = ([PAGES, API], BROWSER) if viewer else ([API], "")
    page = PAGE.format(
        version=escape(keep_agent.__version__), about=escape(keep_agent.__doc__ or ""), links="\n".join(links),
        browser=browser,
    )  # fmt: skip
    router = APIRouter()

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def landing() -> HTMLResponse:
        return HTMLResponse(page)

    return router
