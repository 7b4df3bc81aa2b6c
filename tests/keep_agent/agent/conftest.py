"""Brains of a tiny model, made once, and an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import Brain, brain_of


@pytest.fixture(scope="module")
def brain(tiny_model: Path) -> Iterator[Callable[..., Brain]]:
    """A brain for some overrides, the same for the same."""
    made: dict[tuple[str, ...], Brain] = {}

    def get(*overrides: str) -> Brain:
        if overrides not in made:
            made[overrides] = brain_of([f"model={tiny_model}", "prompt.encoder=hashed", *overrides])
        return made[overrides]

    yield get
    for one in made.values():
        one.engine.close()


@pytest.fixture
def agent(brain: Callable[..., Brain]) -> Iterator[Agent]:
    made = Agent(brain("planner=keep").planner("robot"), "robot")
    yield made
    made.close()
