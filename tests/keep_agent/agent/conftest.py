"""Planner resources of a tiny model, made once, and an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import PlannerResources, make_resources


@pytest.fixture(scope="module")
def resources(tiny_model: Path) -> Iterator[Callable[..., PlannerResources]]:
    """Return a function that makes planner resources for config overrides, once for equal overrides."""
    with ExitStack() as stack:

        @cache
        def get(*overrides: str) -> PlannerResources:
            instance = make_resources([f"model={tiny_model}", "prompt.encoder=hashed", *overrides])
            stack.callback(instance.engine.close)
            return instance

        yield get


@pytest.fixture
def make_agent(resources: Callable[..., PlannerResources]) -> Iterator[Callable[..., Agent]]:
    """Return a function that makes an agent for config overrides; it is closed at the end."""
    with ExitStack() as stack:

        def make(*overrides: str, name: str = "robot", **choices: Any) -> Agent:
            return stack.enter_context(Agent(resources(*overrides).planner(name), name, **choices))

        yield make


@pytest.fixture
def agent(make_agent: Callable[..., Agent]) -> Agent:
    return make_agent("planner=keep")
