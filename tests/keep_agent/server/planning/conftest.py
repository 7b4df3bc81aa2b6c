"""A server of planning agents over a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from keep_agent.config.planner_factory import Brain, brain_of
from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.service import make_service
from keep_agent.server.settings import Settings
from tests.keep_agent.server.serving import OPEN, LiveServer, entry, patient, serving

SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
MUG = Fact("mug_1", "object", "mug", "cabinet_1")
SETTINGS = Settings(limits=patient(Settings().limits), viewer=False)
KITCHEN, ALL = "token-of-the-kitchen", "token-of-all"
SCOPED = Tokens((entry(KITCHEN, "kitchen", "kitchen"), entry(ALL, "all")))


@pytest.fixture
def make_brain(tiny_model: Path) -> Callable[[], Brain]:
    return lambda: brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])


@pytest.fixture(scope="module")
def brain(tiny_model: Path) -> Iterator[Brain]:
    instance = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    yield instance
    instance.engine.close()


@pytest.fixture
def serve(make_brain: Callable[[], Brain], tmp_path: Path) -> Callable[..., Any]:
    """A function that serves ``agents`` over a folder, which the next server finds again."""

    @contextmanager
    def run(
        *agents: str, tokens: Tokens = OPEN, settings: Settings = SETTINGS, token: str | None = None
    ) -> Iterator[LiveServer]:
        with serving(make_service(make_brain(), tmp_path / "server", tokens, settings), token) as server:
            for agent in agents:
                assert server.http.post("/v1/agents", json={"id": agent}).status_code in (201, 409)
            yield server

    return run
