"""A robot that moves for longer than encoding takes never waits for it: what a plan reads is there."""

from __future__ import annotations

import numpy as np
import pytest

from keep_agent.agent.agent import Agent
from keep_agent.robots import Limits, Observed, Planned, RobotSession
from keep_agent.robots.symbolic import symbolic
from keep_agent.robots.task.events import Event


@pytest.mark.slow
def test_encoding_hides_behind_motion() -> None:
    """p95 of what is encoded while a plan waits is 0, over all plans but the first of a task."""
    encoded: list[float] = []
    ahead: list[int] = []
    moving: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Planned):
            encoded.append(event.decision.trace["counts"].get("encoded_token_layers", 0))
            ahead.append(event.decision.trace["ahead"].get("tokens", 0))
        elif isinstance(event, Observed) and event.skill:
            moving.append(event.skill)

    with Agent.from_config("keep", overrides=["prompt.style=linked"]) as agent:
        for episode in range(2):
            executor = symbolic(episode=episode, seconds=0.4, effect=0.25)
            limits = Limits(period=0.05, steps=16)
            session = RobotSession(agent, executor, limits=limits, watch=watch, judge=executor.judge)
            session.run(executor.task.instruction)
    assert len(encoded) > 15 and len(moving) > 10
    assert sum(ahead) > 100
    assert np.percentile(encoded[1:], 95) == 0
