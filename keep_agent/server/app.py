"""The app: routes behind the access rules and within limits, with metrics and a description of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI
from starlette.responses import Response

import keep_agent
from keep_agent.server.auth.access_rules import RULES, AccessMiddleware, Need, Rule, Rules
from keep_agent.server.auth.tokens import TokenSource
from keep_agent.server.error_handlers import RESPONSES, ErrorMiddleware, install
from keep_agent.server.limits.request_limits import Limits, LimitsMiddleware
from keep_agent.server.metrics import Metrics, MetricsMiddleware

HEALTH, FIGURES, DESCRIPTION = "/healthz", "/metrics", "/openapi.json"
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def make_app(
    routers: Sequence[APIRouter],
    *,
    tokens: TokenSource,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    lifespan: Lifespan | None = None,
    title: str = "KEEP Agent",
    rules: Sequence[Rule] = RULES,
) -> FastAPI:
    """An app of ``routers``. No page of it asks another machine for anything.

    :param rules: which token may use which path; a path without one takes a token for all agents
    """
    metrics = metrics or Metrics()
    app = FastAPI(
        title=title, version=keep_agent.__version__, lifespan=lifespan, openapi_url=DESCRIPTION, docs_url=None,
        redoc_url=None, redirect_slashes=False, responses=RESPONSES,
    )  # fmt: skip
    for router in (*routers, _own(metrics)):
        app.include_router(router)
    install(app)
    _describe(app, tokens, Rules(rules))
    # the last one added is the first one asked
    app.add_middleware(LimitsMiddleware, limits=limits or Limits())
    app.add_middleware(AccessMiddleware, tokens=tokens, rules=rules)
    app.add_middleware(ErrorMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app


def _own(metrics: Metrics) -> APIRouter:
    router, limiter = APIRouter(tags=["server"]), anyio.CapacityLimiter(1)

    @router.get(HEALTH, summary="Is the server there?")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": keep_agent.__version__}

    @router.get(FIGURES, summary="Figures for Prometheus", response_class=Response)
    async def figures() -> Response:
        text = await anyio.to_thread.run_sync(metrics.text, limiter=limiter)
        return Response(text, media_type=metrics.content_type)

    return router


def _describe(app: FastAPI, tokens: TokenSource, rules: Rules) -> None:
    """Say in the description where a token is asked for."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        made = app.openapi_schema is None
        schema = plain()
        if made and not tokens.open:
            schema.setdefault("components", {})["securitySchemes"] = SCHEMES
            schema["security"] = [{name: []} for name in SCHEMES]
            public = [path for path in schema["paths"] if rules.of(path)[0].need is Need.NOTHING]
            for operation in (one for path in public for one in schema["paths"][path].values()):
                operation["security"] = []
        return schema

    app.openapi = described  # type: ignore[method-assign]
