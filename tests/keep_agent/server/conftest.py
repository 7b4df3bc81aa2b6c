"""A whole server over a tiny random model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from transformers import PreTrainedTokenizerFast

from keep_agent.config.planner_factory import make_resources
from keep_agent.server.app import make_app, unsupported_router
from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.chat.anthropic import anthropic_router
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.chat.generate import generate_router
from keep_agent.server.chat.openai import openai_router
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.request_limits import RequestLimits
from keep_agent.server.metrics import Metrics
from keep_agent.server.scenarios.registry import Scenarios
from keep_agent.server.scenarios.routes import scenario_router
from keep_agent.server.service import make_service
from keep_agent.server.settings import ChatLimits, Settings
from memory.engine.base import Engine
from memory.engine.models.load import from_config
from memory.engine.transformers.engine import TransformersEngine
from tests.keep_agent.agent.playing import small_config
from tests.keep_agent.server.serving import OPEN, LiveServer, entry, patient, serving

MODEL = "tiny"
SETTINGS = Settings(limits=patient(Settings().limits), viewer=False)
TOKENS = Tokens((entry("token-all", "all"), entry("token-a", "a", "a"), entry("token-ab", "ab", "a", "b")))


@dataclass(frozen=True)
class Whole:
    app: FastAPI
    conversations: Conversations
    scenarios: Scenarios
    limiter: ConcurrencyLimiter
    metrics: Metrics


@pytest.fixture(scope="session")
def engine(chat: PreTrainedTokenizerFast) -> Iterator[Engine]:
    with TransformersEngine(from_config(small_config(len(chat)), torch.float32, seed=2), "inline") as make:
        yield make


Build = Callable[..., Whole]
Serve = Callable[..., Any]
Service = Callable[..., FastAPI]


@pytest.fixture(scope="session")
def build(engine: Engine, chat: PreTrainedTokenizerFast) -> Build:
    """Return a function that makes an app over the shared engine; ``knobs`` are options of the agents' memories."""

    def make(
        tokens: Tokens = OPEN, folder: Path | None = None, limits: RequestLimits | None = None,
        chat_limits: ChatLimits | None = None, scenarios_of: type[Scenarios] = Scenarios, **knobs: Any,
    ) -> Whole:  # fmt: skip
        limits, metrics = patient(limits or RequestLimits()), Metrics()
        limiter = ConcurrencyLimiter(limits.requests, limits.per_agent)
        talks = Conversations(engine, chat, MODEL, limiter, folder, chat_limits, metrics, **knobs)
        scenarios = scenarios_of(talks)

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> Any:
            yield
            await scenarios.close()
            await talks.close()

        routers = [router(talks) for router in (openai_router, anthropic_router, generate_router)]
        routers += [unsupported_router(), scenario_router(scenarios, talks, limiter)]
        app = make_app(routers, tokens=tokens, limits=limits, metrics=metrics, lifespan=lifespan)
        return Whole(app, talks, scenarios, limiter, metrics)

    return make


@pytest.fixture(scope="session")
def serve(build: Build) -> Serve:
    """Return a function that makes and serves an app."""

    @contextmanager
    def make(token: str | None = None, **knobs: Any) -> Iterator[tuple[LiveServer, Whole]]:
        whole = build(**knobs)
        with serving(whole.app, token) as server:
            yield server, whole

    return make


@pytest.fixture(scope="session")
def service(tiny_model: Path) -> Service:
    """Return a function that makes a whole server with planning agents, whose files are in a folder."""

    def make(folder: Path, tokens: Tokens = OPEN, settings: Settings = SETTINGS) -> FastAPI:
        return make_service(make_resources([f"model={tiny_model}", "prompt.encoder=hashed"]), folder, tokens, settings)

    return make


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[LiveServer]:
    with serve() as (make, _):
        yield make


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Iterator[LiveServer]:
    """Serve an app with tokens; the client has the token for all agents."""
    with serve("token-all", tokens=TOKENS) as (make, _):
        yield make
