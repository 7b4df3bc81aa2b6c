"""Complete server: planning agents, conversations and scenarios on one loaded model."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from keep_agent.config.planner_factory import PlannerResources
from keep_agent.server.app import landing_router, make_app, unsupported_router
from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.chat.anthropic import anthropic_router
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.chat.generate import generate_router
from keep_agent.server.chat.openai import openai_router
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from keep_agent.server.planning.registry import AgentRegistry
from keep_agent.server.planning.routes import PlanningService, planning_router
from keep_agent.server.planning.websocket import socket_router
from keep_agent.server.scenarios.registry import Scenarios
from keep_agent.server.scenarios.routes import scenario_router
from keep_agent.server.settings import Settings

log = logging.getLogger(__name__)


def make_service(
    resources: PlannerResources, folder: Path, tokens: Tokens, settings: Settings | None = None
) -> FastAPI:
    """Make the application. Its shutdown unloads all agents and closes the engine."""
    settings = settings or Settings()
    metrics, limits = Metrics(), settings.limits
    # separate limiters, so that conversations never delay or reject robots' plans
    plans, chats = (ConcurrencyLimiter(limits.requests, limits.per_agent) for _ in range(2))
    registry = AgentRegistry(resources, folder, settings.agents, settings.trace)
    planner = PlanningService(registry, plans, metrics)
    conversations = Conversations(
        resources.engine, resources.tokenizer, Path(resources.config.model.name).name, chats, folder / "chat",
        settings.chat, metrics, host_bytes=settings.chat_bytes, disk_bytes=settings.disk_bytes,
    )  # fmt: skip
    scenarios = Scenarios(conversations)
    metrics.add_gauge("plans_inside", "Running planning requests", lambda: plans.active)
    metrics.add_gauge("talks_inside", "Running requests of conversations and scenarios", lambda: chats.active)
    metrics.add_gauge("block_bytes", "Bytes of agents' KV blocks", lambda: resources.method.storage.stats()["bytes"])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:  # runs all callbacks, last one first, even if one fails
            stack.push_async_callback(planner.run_in_thread, resources.close)
            stack.push_async_callback(planner.run_in_thread, registry.close)
            stack.push_async_callback(conversations.close)
            stack.push_async_callback(scenarios.close)
            yield
        log.info("all memories are saved in %s", folder)

    routers = [
        planning_router(planner, conversations.forget),
        socket_router(planner, settings),
        *(router(conversations) for router in (openai_router, anthropic_router, generate_router)),
        scenario_router(scenarios, conversations, chats),
        unsupported_router(),
        landing_router(settings.viewer),
    ]
    app = make_app(routers, tokens=tokens, limits=limits, metrics=metrics, lifespan=lifespan)
    if settings.viewer:
        from keep_agent.viewer.server import mount

        mount(app, registry.runs)
    return app
