"""Agents in several threads: loading a model changes no other agent, and encoding hides behind motion."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from envs.fact import Fact
from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import PlannerResources
from keep_agent.robots import Limits, Observed, Planned, RobotSession
from keep_agent.robots.symbolic import symbolic
from keep_agent.robots.task.events import Event
from tests import beside

SKILLS = ["pick up mug 1", "go to fridge 1", "done"]
PLANNERS = "full_recompute", "keep", "cacheblend", "epic", "sparsex", "prefix_cache", "memart", "semantic"
HOPPING = "keep", "keep_latent", "memart_hops", "sparsex_hops"
FORGETTING = "intentkv_rule", "h2o", "snapkv", "streaming"


def plans(agent: Agent) -> list[tuple[str, tuple, list]]:
    """Return skills, scores, and the attention between segments."""
    shared = []
    for number, state in enumerate(("open", "closed", "open", "closed")):
        mug = Fact(f"mug_{number}", "object", "mug", place="countertop_1")
        fridge = Fact("fridge_1", "receptacle", "fridge", states=(state,))
        agent.observe([Fact("agent", "agent", "agent", place="countertop_1"), mug, fridge])
        decision = agent.plan("Put a mug in the fridge.", SKILLS)
        shared.append((decision.skill, decision.scores, decision.trace["hops"]))
    return shared


def test_agents_are_made_in_several_threads(tiny_model: Path) -> None:
    overrides = "model.init=random", "prompt.encoder=hashed"

    def make(number: int) -> tuple[list, float]:
        with Agent.from_config(
            model=str(tiny_model), overrides=overrides, ahead=False, name=f"robot {number}"
        ) as agent:
            weights = agent._session.engine.model.module.parameters()
            return plans(agent), sum(float(weight.double().abs().sum()) for weight in weights)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(make, range(8)))
    assert results == results[:1] * 8


@pytest.mark.parametrize("planner", [*PLANNERS, *HOPPING, *FORGETTING])
def test_loading_another_model_changes_no_plan(planner: str, resources: Callable[..., PlannerResources]) -> None:
    budget = ["memory.retention.budget=30"] if planner in FORGETTING else []
    shared = resources(*f"planner={planner}".split(), "model.dtype=float32", *budget)
    with Agent(shared.planner("one"), "one", ahead=False) as agent:
        alone = plans(agent)
    with Agent(shared.planner("two"), "two", ahead=False) as agent, beside.loading():
        assert plans(agent) == alone


@pytest.mark.slow
def test_encoding_hides_behind_motion() -> None:
    """p95 of the encoding time during a plan is 0, over all plans but the first of a task."""
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
