"""The whole server: one brain, planning agents and conversations on it, and an end that loses nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from keep_agent.config.planner_factory import Brain
from keep_agent.server.app import make_app
from keep_agent.server.auth.tokens import TokenSource
from keep_agent.server.chat.anthropic import AnthropicRoutes
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.chat.generate import GenerateRoutes
from keep_agent.server.chat.openai import OpenAIRoutes
from keep_agent.server.chat.unsupported_routes import elsewhere_router
from keep_agent.server.landing_page import landing_router
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from keep_agent.server.planning.registry import Registry
from keep_agent.server.planning.routes import Planner, PlanningRoutes
from keep_agent.server.planning.websocket import SocketRoutes
from keep_agent.server.scenarios.registry import Scenarios
from keep_agent.server.scenarios.routes import ScenarioRoutes
from keep_agent.server.settings import Settings

CHAT = "chat"  # conversations' rows, in the server's folder
log = logging.getLogger(__name__)


def make_service(brain: Brain, folder: Path, tokens: TokenSource, settings: Settings | None = None) -> FastAPI:
    """The application. When it ends it puts all agents to sleep, and closes the engine."""
    settings = settings or Settings()
    metrics, most, per_agent = Metrics(), settings.limits.requests, settings.limits.per_agent
    plans, talks = (
        ConcurrencyLimiter(most, per_agent),
        ConcurrencyLimiter(most, per_agent),
    )  # so that robots get in however much is talked
    registry = Registry(brain, folder, settings.agents, settings.trace)
    planner = Planner(registry, plans, metrics)
    conversations = Conversations.of(
        brain.engine, brain.tokenizer, Path(brain.config.model.name).name, talks, folder / CHAT, settings.chat,
        metrics, host_bytes=settings.chat_bytes, disk_bytes=settings.disk_bytes,
    )  # fmt: skip
    scenarios = Scenarios(conversations)
    metrics.watch("plans_inside", "Requests of planning in the works", lambda: plans.inside)
    metrics.watch("talks_inside", "Requests of conversations and scenarios in the works", lambda: talks.inside)
    metrics.watch("block_bytes", "Keys and values of planning agents", lambda: _bytes(brain))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:  # each is closed whatever becomes of the others, the last one first
            stack.push_async_callback(planner.thread, brain.close)
            stack.push_async_callback(planner.thread, registry.close)
            stack.push_async_callback(conversations.close)
            stack.push_async_callback(scenarios.close)
            yield
        log.info("all that is remembered is in %s", folder)

    routers = [
        PlanningRoutes(planner, conversations.forget).router,
        SocketRoutes(planner, settings).router,
        *(routes(conversations).router for routes in (OpenAIRoutes, AnthropicRoutes, GenerateRoutes)),
        ScenarioRoutes(scenarios, conversations, talks).router,
        elsewhere_router(),
        landing_router(settings.viewer),
    ]
    app = make_app(routers, tokens=tokens, limits=settings.limits, metrics=metrics, lifespan=lifespan)
    if settings.viewer:
        from keep_agent.viewer.server import mount

        mount(app, registry.runs)
    return app


def _bytes(brain: Brain) -> int:
    return brain.method.storage.stats()["bytes"]
