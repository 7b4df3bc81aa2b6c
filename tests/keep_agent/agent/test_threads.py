"""Agents in several threads: libraries load with state of the whole process, of which no other may notice anything."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.fact import Fact
from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import Brain
from tests import beside

SKILLS = ["pick up mug 1", "go to fridge 1", "done"]
PLANNERS = "full_recompute", "keep", "cacheblend", "epic", "sparsex", "prefix_cache", "memart", "semantic"
HOPPING = "keep", "keep_latent", "memart_hops", "sparsex_hops"
FORGETTING = "intentkv_rule", "h2o", "snapkv", "streaming"


def plans(agent: Agent) -> list[tuple[str, tuple, list]]:
    """Skills and scores, and which segments gave how much attention to which."""
    made = []
    for number, state in enumerate(("open", "closed", "open", "closed")):
        agent.observe(
            [
                Fact("agent", "agent", "agent", place="countertop_1"),
                Fact(f"mug_{number}", "object", "mug", place="countertop_1"),
                Fact("fridge_1", "receptacle", "fridge", states=(state,)),
            ]
        )
        decision = agent.plan("Put a mug in the fridge.", SKILLS)
        made.append((decision.skill, decision.scores, decision.trace["hops"]))
    return made


def test_agents_are_made_in_several_threads(tiny_model: Path) -> None:
    """Each has its own model; two that loaded at once had weights without content, or those of no seed."""
    given = "model.init=random", "prompt.encoder=hashed"

    def make(number: int) -> tuple[list, float]:
        with Agent.from_config(model=str(tiny_model), overrides=given, ahead=False, name=f"robot {number}") as agent:
            weights = agent._session.engine.model.module.parameters()
            return plans(agent), sum(float(weight.double().abs().sum()) for weight in weights)

    with ThreadPoolExecutor(4) as pool:
        (first, *others) = pool.map(make, range(8))
    assert all(other == first for other in others)


@pytest.mark.parametrize("planner", [*PLANNERS, *HOPPING, *FORGETTING])
def test_a_model_that_loads_beside_changes_no_plan(planner: str, brain: Callable[..., Brain]) -> None:
    budget = ["memory.retention.budget=30"] if planner in FORGETTING else []
    made = brain(*f"planner={planner}".split(), "model.dtype=float32", *budget)
    with Agent(made.planner("one"), "one", ahead=False) as agent:
        alone = plans(agent)
    with Agent(made.planner("two"), "two", ahead=False) as agent, beside.loading():
        assert plans(agent) == alone
