"""Blocks of a server's agents in a storage that outlives the process: kept while they sleep, gone when they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envs.fact import Fact
from keep_agent.config.planner_factory import Brain, brain_of
from keep_agent.server.planning.registry import Registry
from keep_agent.server.settings import AgentLimits

FACTS = [Fact(f"mug_{i}", "object", "mug", f"countertop_{i}") for i in range(12)]
ROBOT = Fact("agent", "agent", "agent", "fridge_1")
Wake = Callable[[], Brain]


@pytest.fixture(params=["disk", "tiers"])
def wake(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Iterator[Wake]:
    """A brain as a new process has it, over the same folder of blocks."""
    instance: list[Brain] = []
    storage = [f"memory/storage={request.param}"]
    if request.param == "disk":
        storage.append(f"memory.storage.folder={tmp_path}/blocks")
    else:
        ram = "{_target_:memory.storage.ram.Ram,budget_bytes:20000,device:cpu}"
        storage.append(f"memory.storage.tiers=[{ram},{{_target_:memory.storage.disk.Disk,folder:'{tmp_path}/blocks'}}]")

    def start() -> Brain:
        instance.append(brain_of([f"model={tiny_model}", "prompt.encoder=hashed", *storage]))
        return instance[-1]

    yield start
    for brain in instance:
        brain.close()


def namespaces(brain: Brain) -> Counter[str]:
    return Counter(entry.owner for entry in brain.method.storage.entries())


def test_a_sleeping_agents_blocks_outlive_the_process_and_a_deleted_ones_do_not(wake: Wake, tmp_path: Path) -> None:
    brain, skills = wake(), ["go to countertop_1", "go to countertop_2"]
    registry = Registry(brain, tmp_path / "agents", AgentLimits(awake=1), trace=False)
    for name in ("kitchen", "bath"):
        registry.create(name)
        with registry.use(name) as agent:
            agent.observe([ROBOT, *FACTS])
            first = agent.plan("find a mug", skills)
    asleep = namespaces(brain)
    assert registry.awake == 1 and asleep["kitchen"] == asleep["bath"] > 0
    registry.close()
    brain.close()

    brain = wake()
    registry = Registry(brain, tmp_path / "agents", AgentLimits(awake=1), trace=False)
    with registry.use("bath") as agent:
        agent.observe(FACTS[:1])
        again = agent.plan("find a mug", skills)
    assert again.skill == first.skill and brain.method.storage.stats()["hits"] > 0
    registry.delete("kitchen")
    registry.close()
    brain.close()

    brain = wake()
    released = namespaces(brain)
    assert released["bath"] > 0 and not released["kitchen"]
    registry = Registry(brain, tmp_path / "agents", AgentLimits(awake=1), trace=False)
    registry.delete("bath")  # the first thing that this process does
    registry.close()
    brain.close()
    assert not namespaces(wake())
