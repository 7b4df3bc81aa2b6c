"""Agents in several threads: libraries load with state of the whole process, of which no other may notice anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from envs.fact import Fact
from keep_agent.agent import Agent
from keep_agent.brain import Brain

SKILLS = ["pick up mug 1", "go to fridge 1", "done"]
PLANNERS = "full_recompute", "keep", "cacheblend", "epic", "sparsex", "prefix_cache", "memart", "semantic"
FORGETTING = "intentkv_rule", "h2o", "snapkv", "streaming"


def plans(agent: Agent) -> list[tuple[str, tuple]]:
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
        made.append((decision.skill, decision.scores))
    return made


@contextmanager
def loading_bfloat16() -> Iterator[None]:
    """What another thread sees while transformers makes a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_agents_are_made_in_several_threads(tiny_model: Path) -> None:
    """Each has its own model; two that loaded at once had weights without content, or those of no seed."""
    given = "model.init=random", "prompt.encoder=hashed"

    def make(number: int) -> tuple[list, float]:
        with Agent.from_config(model=str(tiny_model), overrides=given, name=f"robot {number}") as agent:
            weights = agent._session.engine.model.module.parameters()
            return plans(agent), sum(float(weight.double().abs().sum()) for weight in weights)

    with ThreadPoolExecutor(4) as pool:
        (first, *others) = pool.map(make, range(8))
    assert all(other == first for other in others)


@pytest.mark.parametrize("planner", [*PLANNERS, *FORGETTING])
def test_a_model_that_loads_beside_changes_no_plan(planner: str, brain: Callable[..., Brain]) -> None:
    budget = ["memory.retention.budget=30"] if planner in FORGETTING else []
    made = brain(f"planner={planner}", "model.dtype=float32", *budget)
    with Agent(made.planner("one"), "one") as agent:
        alone = plans(agent)
    with Agent(made.planner("two"), "two") as agent, loading_bfloat16():
        assert plans(agent) == alone
