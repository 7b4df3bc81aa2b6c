"""The server's FastAPI application: routes behind access rules and request limits, with metrics and a landing page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from html import escape
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import HTMLResponse, Response

import keep_agent
from keep_agent.server.auth.access_rules import REPLACEMENTS, RULES, VIEWER, AccessMiddleware, Need, Rule, rule_of
from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.error_handlers import RESPONSES, ErrorMiddleware, NotFound, install
from keep_agent.server.limits.request_limits import LimitsMiddleware, RequestLimits
from keep_agent.server.metrics import Metrics, MetricsMiddleware

DESCRIPTION = "/openapi.json"
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>KEEP Agent</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}</style>
<h1>KEEP Agent {version}</h1>
<p>{about}</p>
<ul>
{links}
</ul>
<p>If the server has tokens, clients send <code>Authorization: Bearer TOKEN</code>{browser}.</p>
</html>
"""
API = f'<li><a href="{DESCRIPTION}">{DESCRIPTION}</a>: the API, with examples (OpenAPI)</li>'
PAGES = f'<li><a href="{VIEWER}/">{VIEWER}/</a>: the steps of every agent</li>'
BROWSER = f", and browsers open <code>{VIEWER}?token=TOKEN</code> once, with a token for all agents"
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def make_app(
    routers: Sequence[APIRouter], *, tokens: Tokens, limits: RequestLimits | None = None,
    metrics: Metrics | None = None, lifespan: Lifespan | None = None, rules: Sequence[Rule] = RULES,
) -> FastAPI:  # fmt: skip
    """Make an application from ``routers``. A path without a matching rule needs a token for all agents."""
    metrics = metrics or Metrics()
    app = FastAPI(
        title="KEEP Agent", version=keep_agent.__version__, lifespan=lifespan, openapi_url=DESCRIPTION, docs_url=None,
        redoc_url=None, redirect_slashes=False, responses=RESPONSES,
    )  # fmt: skip
    for router in (*routers, _health_and_metrics(metrics)):
        app.include_router(router)
    install(app)
    _describe_security(app, tokens, rules)
    # the middleware that is added last runs first
    app.add_middleware(LimitsMiddleware, limits=limits or RequestLimits())
    app.add_middleware(AccessMiddleware, tokens=tokens, rules=rules)
    app.add_middleware(ErrorMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app


def _health_and_metrics(metrics: Metrics) -> APIRouter:
    router, limiter = APIRouter(tags=["server"]), anyio.CapacityLimiter(1)

    @router.get("/healthz", summary="Health check")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": keep_agent.__version__}

    @router.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def figures() -> Response:
        text = await anyio.to_thread.run_sync(metrics.text, limiter=limiter)
        return Response(text, media_type=metrics.content_type)

    return router


def _describe_security(app: FastAPI, tokens: Tokens, rules: Sequence[Rule]) -> None:
    """Mark the operations that need a token in the OpenAPI description."""
    make_schema = app.openapi

    def describe() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        schema = make_schema()
        if is_new and not tokens.open:
            schema.setdefault("components", {})["securitySchemes"] = SCHEMES
            schema["security"] = [{name: []} for name in SCHEMES]
            for path, operations in schema["paths"].items():
                if rule_of(path, rules)[0].need is Need.NO_TOKEN:
                    for operation in operations.values():
                        operation["security"] = []
        return schema

    app.openapi = describe  # type: ignore[method-assign]


def unsupported_router() -> APIRouter:
    """Return routes that answer unsupported vendor endpoints with 404 and the endpoint to use instead."""
    router = APIRouter(include_in_schema=False)

    async def refuse(request: Request) -> None:
        url = f"{request.scope['path']}/"
        path, remedy = next((path, remedy) for path, remedy in REPLACEMENTS.items() if url.startswith(f"{path}/"))
        raise NotFound(f"{path} is not served here: {remedy}")

    for path in REPLACEMENTS:
        for pattern in (path, f"{path}/{{rest:path}}"):
            router.add_api_route(pattern, refuse, methods=["GET", "POST", "DELETE"])
    return router


def landing_router(viewer: bool) -> APIRouter:
    """Return the route of the landing page ``/``, which links to the API and, if ``viewer``, to the viewer."""
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
