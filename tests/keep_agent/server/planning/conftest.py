"""A server of planning agents over a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from keep_agent.config.planner_factory import Brain, brain_of
from keep_agent.server.auth.tokens import Access, Entry, Tokens, digest
from keep_agent.server.service import make_service
from keep_agent.server.settings import Settings
from tests.keep_agent.server.serving import LiveServer, patient, serving

SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
MUG = Fact("mug_1", "object", "mug", "cabinet_1")
OPEN = Tokens(open=True)
SETTINGS = Settings(limits=patient(Settings().limits), viewer=False)
KITCHEN, ALL = "token-of-the-kitchen", "token-of-all"
SCOPED = Tokens((Entry(Access("kitchen", frozenset({"kitchen"})), digest(KITCHEN)), Entry(Access("all"), digest(ALL))))


@pytest.fixture
def make_brain(tiny_model: Path) -> Callable[[], Brain]:
    return lambda: brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])


@pytest.fixture(scope="module")
def brain(tiny_model: Path) -> Iterator[Brain]:
    """One for all tests of a file."""
    instance = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    yield instance
    instance.engine.close()


@pytest.fixture
def serve(make_brain: Callable[[], Brain], tmp_path: Path) -> Callable[..., Any]:
    """A server over a folder that the next one finds again."""

    @contextmanager
    def run(tokens: Tokens = OPEN, settings: Settings = SETTINGS, token: str | None = None) -> Iterator[LiveServer]:
        with serving(make_service(make_brain(), tmp_path / "server", tokens, settings), token) as server:
            yield server

    return run
