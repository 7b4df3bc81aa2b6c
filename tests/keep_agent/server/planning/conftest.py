"""A server of planning agents over a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from keep_agent.config.planner_factory import PlannerResources, make_resources
from keep_agent.server.auth.tokens import Tokens
from tests.keep_agent.server.conftest import Serve, Service
from tests.keep_agent.server.serving import LiveServer, entry, serving

SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
MUG = Fact("mug_1", "object", "mug", "cabinet_1")
KITCHEN, ALL = "token-of-the-kitchen", "token-of-all"
SCOPED = Tokens((entry(KITCHEN, "kitchen", "kitchen"), entry(ALL, "all")))


@pytest.fixture(scope="module")
def resources(tiny_model: Path) -> Iterator[PlannerResources]:
    instance = make_resources([f"model={tiny_model}", "prompt.encoder=hashed"])
    yield instance
    instance.engine.close()


@pytest.fixture
def serve(service: Service, tmp_path: Path) -> Serve:
    """Return a function that serves ``agents`` from a folder, which the next server uses again."""

    @contextmanager
    def run(*agents: str, token: str | None = None, **options: Any) -> Iterator[LiveServer]:
        with serving(service(tmp_path / "server", **options), token) as server:
            for agent in agents:
                assert server.http.post("/v1/agents", json={"id": agent}).status_code in (201, 409)
            yield server

    return run
