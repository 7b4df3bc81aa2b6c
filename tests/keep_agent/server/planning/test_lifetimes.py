"""Planning agents that sleep, wake up, are deleted or damaged, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from keep_agent.agent.client import Client, ServerError
from keep_agent.config.planner_factory import Brain
from keep_agent.errors import ConfigError
from keep_agent.server.error_handlers import Conflict, NotFound
from keep_agent.server.planning.registry import Registry
from keep_agent.server.settings import AgentLimits
from tests.keep_agent.server.planning.conftest import MUG, SETTINGS
from tests.threads import at_once


def test_agents_sleep_and_wake_up_as_they_were(serve: Callable[..., Any]) -> None:
    settings = replace(SETTINGS, agents=AgentLimits(agents=5, awake=2))
    with serve(settings=settings) as server, Client(server.url) as client:
        agents = [client.agent(f"robot-{number}") for number in range(5)]
        for number, agent in enumerate(agents):
            agent.observe([Fact(f"mug_{i}", "object", "mug") for i in range(number + 1)])
        assert "keep_agent_agents_awake 2.0" in server.http.get("/metrics").text
        assert [agent.about().segments for agent in agents] == [1, 2, 3, 4, 5]
        with pytest.raises(ServerError, match="5 agents, no more are allowed") as error:
            client.agent("robot-5")
        assert error.value.status == 507


def test_many_use_and_delete_the_same_few(brain: Brain, tmp_path: Path) -> None:
    registry = Registry(brain, tmp_path, AgentLimits(awake=1), trace=False)

    def work(number: int) -> None:
        for turn in range(12):
            with registry.use(f"robot-{number % 3}") as agent:
                agent.observe([Fact(f"mug_{number}_{turn}", "object", "mug")])

    for number in range(3):
        registry.create(f"robot-{number}")
    at_once(*(partial(work, number) for number in range(9)))
    for number in range(3):
        with registry.use(f"robot-{number}") as agent:
            assert agent.agent.segments == 36
    with registry.use("robot-0") as agent:
        registry.delete("robot-0")
        with pytest.raises(ConfigError, match="was closed"):
            agent.observe([MUG])
    registry.create("robot-0")
    with registry.use("robot-0") as agent:
        assert agent.agent.segments == 0
    registry.close()
    assert registry.names() == ["robot-0", "robot-1", "robot-2"]


def test_who_only_talked_is_forgotten_too(serve: Callable[..., Any]) -> None:
    with serve() as server:
        body = {"prompt": "go to cabinet_1 " * 20, "tokens": 1}
        server.http.post("/v1/agents/kitchen/generate", json=body)
        assert server.http.post("/v1/agents/kitchen/generate", json=body).json()["kept"] > 0
        assert server.http.delete("/v1/agents/kitchen").status_code == 204
        assert server.http.delete("/v1/agents/kitchen").status_code == 404
        assert server.http.post("/v1/agents/kitchen/generate", json=body).json()["kept"] == 0


def test_deleting_beside_other_calls_brings_nobody_back(brain: Brain, tmp_path: Path) -> None:
    """Check that each call succeeds or names the missing agent, and that a journal has one owner."""
    registry = Registry(brain, tmp_path, trace=False)

    def work(what: Callable[[], None]) -> None:
        for _ in range(40):
            with suppress(NotFound, Conflict, ConfigError):
                what()

    def observe() -> None:
        with registry.use("kitchen") as agent:
            agent.observe([MUG])

    delete, create = partial(registry.delete, "kitchen"), partial(registry.create, "kitchen")
    at_once(*(partial(work, call) for call in (observe, observe, delete, delete, create)))
    if "kitchen" in registry.names():
        registry.delete("kitchen")
    assert not registry.awake and not registry.names()
    registry.close()


def test_a_damaged_agent_disturbs_nobody_and_can_be_deleted(serve: Callable[..., Any], tmp_path: Path) -> None:
    with serve() as server, Client(server.url) as client:
        client.agent("kitchen").observe([MUG])
    (memory,) = (tmp_path / "server" / "agents").glob("kitchen-*/memory.json")
    memory.write_bytes(memory.read_bytes()[:-5])
    with serve() as server, Client(server.url) as client:
        with pytest.raises(ServerError, match="damaged") as error:
            client.agent("kitchen").about()
        assert error.value.status == 400
        client.agent("garage").observe([MUG])
        client.delete("kitchen")
        assert client.agent("kitchen").about().segments == 0


def test_one_process_has_the_folder(brain: Brain, tmp_path: Path) -> None:
    first = Registry(brain, tmp_path)
    with pytest.raises(ConfigError, match="is at work"):
        Registry(brain, tmp_path)
    first.close()
    Registry(brain, tmp_path).close()
