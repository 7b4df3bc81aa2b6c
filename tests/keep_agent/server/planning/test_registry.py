"""Registry of agents: sleep, deletion, damage and replacement, also while requests wait, and blocks on disk."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envs.fact import Fact
from keep_agent.agent.client import Client, ServerError
from keep_agent.agent.durable import JOURNAL, MEMORY
from keep_agent.config.planner_factory import PlannerResources, make_resources
from keep_agent.errors import ConfigError, CorruptError, DataError, ModelError
from keep_agent.server.error_handlers import Conflict, NotFound, Unavailable
from keep_agent.server.planning.registry import AgentRegistry
from keep_agent.server.settings import AgentLimits
from tests.keep_agent.server.conftest import SETTINGS, Serve
from tests.threads import at_once
from tests.waiting import PATIENCE, until

END = "journal.end"
MUG, CUP = (Fact(f"{name}_1", "object", name) for name in ("mug", "cup"))


@pytest.fixture
def registry(resources: PlannerResources, tmp_path: Path) -> Iterator[AgentRegistry]:
    instance = AgentRegistry(resources, tmp_path, trace=False)
    instance.create("kitchen")
    with instance.use("kitchen") as agent:
        agent.observe([MUG])
    yield instance
    instance.close()


refuse = Mock(side_effect=OSError(28, "No space left on device"))


def test_deleting_writes_and_reads_nothing(registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("keep_agent.agent.durable.write_packed", lambda *arguments: pytest.fail("it was written"))
        registry.delete("kitchen")
    assert not registry.names() and not registry.loaded_count
    registry.create("kitchen")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_load", lambda *arguments: pytest.fail("it was woken up"))
        registry.delete("kitchen")
    assert not registry.names()


def test_an_agent_that_could_not_be_deleted_stays(registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "rename", refuse)
        registry.delete("kitchen")
    with registry.use("kitchen") as agent:
        agent.observe([CUP])
        assert agent.agent.segments == 2


class Damaged:
    """A killed agent with a mug in its memory and a cup in its journal, of which one file is damaged."""

    def __init__(self, resources: PlannerResources, folder: Path, name: str) -> None:
        registry = AgentRegistry(resources, folder, trace=False)
        registry.create("kitchen")
        with registry.use("kitchen") as agent:
            self.empty = agent.dump()
            agent.observe([MUG])
            agent.compact()
            agent.observe([CUP])
        files = {file: (agent.folder / file).read_bytes() for file in (MEMORY, JOURNAL, END)}
        registry.close()
        self.whole, self.path = files[name], agent.folder / name
        self.files = files | {name: self.whole.replace(b"mug", b"mag").replace(b"cup", b"cap")}
        for file, content in self.files.items():
            (agent.folder / file).write_bytes(content)


@pytest.fixture(params=[MEMORY, JOURNAL])
def damaged(request: pytest.FixtureRequest, resources: PlannerResources, tmp_path: Path) -> Damaged:
    return Damaged(resources, tmp_path, request.param)


def test_a_damaged_agent_takes_another_memory(resources: PlannerResources, tmp_path: Path, damaged: Damaged) -> None:
    registry = AgentRegistry(resources, tmp_path, trace=False)
    for _ in range(2):  # a refused memory changes no file
        with pytest.raises(CorruptError), registry.use("kitchen"):
            pass
        with pytest.raises(DataError, match="not an agent's memory"):
            registry.replace("kitchen", {})
    registry.replace("kitchen", damaged.empty)
    for _ in range(2):  # no line of the old journal follows the new memory
        with registry.use("kitchen") as agent:
            assert agent.dump() == damaged.empty
        registry.close()
        registry = AgentRegistry(resources, tmp_path, trace=False)
    registry.replace("kitchen", damaged.empty)
    registry.close()


def test_a_memory_that_cannot_be_written_takes_nothing_away(
    resources: PlannerResources, tmp_path: Path, damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged agent keeps its files on a full disk, so that they can be repaired by hand."""
    registry = AgentRegistry(resources, tmp_path, trace=False)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("keep_agent.agent.durable.write_packed", refuse)
        registry.replace("kitchen", damaged.empty)
    for name in (MEMORY, JOURNAL):
        assert damaged.path.with_name(name).read_bytes() == damaged.files[name]
    damaged.path.write_bytes(damaged.whole)
    for segments in (2, 0):
        with registry.use("kitchen") as agent:
            assert agent.agent.segments == segments
        registry.replace("kitchen", damaged.empty)
        registry.close()
        registry = AgentRegistry(resources, tmp_path, trace=False)
    registry.close()


def test_a_request_that_waits_during_the_end_does_not_wake_the_agent(registry: AgentRegistry) -> None:
    def use() -> None:
        with pytest.raises(Unavailable, match="shutting down"), registry.use("kitchen"):
            pass

    entry = registry._entries["kitchen"]
    with ThreadPoolExecutor(2) as pool, entry.lock:
        ending = pool.submit(registry.close)
        until(lambda: registry._is_closed)
        using = pool.submit(use)
        until(lambda: entry.users)  # it is about to take the lock
    assert ending.result() is using.result() is None and not registry.loaded_count
    use()


def test_a_call_of_a_deleted_agent_is_not_found(registry: AgentRegistry) -> None:
    with pytest.raises(NotFound, match="no agent 'kitchen'"), registry.use("kitchen") as agent:
        registry.delete("kitchen")
        with pytest.raises(ConfigError, match="was closed"):
            agent.observe([MUG])
        agent.observe([CUP])


def test_a_call_during_a_deletion_is_not_found(registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, received = threading.Event(), threading.Event()
    sleep = registry._unload

    def slowly(*arguments: Any, **more: Any) -> None:
        sleep(*arguments, **more)
        closed.set()
        received.wait(PATIENCE)

    monkeypatch.setattr(registry, "_unload", slowly)
    with pytest.raises(NotFound, match="no agent 'kitchen'"), registry.use("kitchen") as agent:
        deleting = threading.Thread(target=registry.delete, args=("kitchen",))
        deleting.start()
        assert closed.wait(PATIENCE)
        threading.Timer(0.05, received.set).start()  # during the call of `observe`
        agent.observe([CUP])
    deleting.join(PATIENCE)


@pytest.mark.parametrize(
    ("override", "text"),
    [("planner.max_new_tokens=0", "max_new_tokens=0 leaves no room"), ("planner=intentkv", "no retention head in")],
)
def test_settings_that_no_planner_takes_are_refused_at_start(tiny_model: Path, override: str, text: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises((ConfigError, ModelError), match=text):
        make_resources([f"model={tiny_model}", "prompt.encoder=hashed", override])
    # transformers does not wait for its threads that read weights: they may end a little later
    until(lambda: set(threading.enumerate()) <= before)


MUGS = [Fact(f"mug_{i}", "object", "mug", f"countertop_{i}") for i in range(12)]
ROBOT = Fact("agent", "agent", "agent", "fridge_1")
Process = Callable[[], AbstractContextManager[tuple[PlannerResources, AgentRegistry]]]


@pytest.fixture(params=["disk", "tiers"])
def process(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Process:
    """Return a context that opens resources and a registry over one folder of blocks, as a new process does."""
    storage = [f"memory/storage={request.param}"]
    if request.param == "disk":
        storage.append(f"memory.storage.folder={tmp_path}/blocks")
    else:
        ram = "{_target_:memory.storage.ram.Ram,budget_bytes:20000,device:cpu}"
        storage.append(f"memory.storage.tiers=[{ram},{{_target_:memory.storage.disk.Disk,folder:'{tmp_path}/blocks'}}]")

    @contextmanager
    def start() -> Iterator[tuple[PlannerResources, AgentRegistry]]:
        resources = make_resources([f"model={tiny_model}", "prompt.encoder=hashed", *storage])
        registry = AgentRegistry(resources, tmp_path / "agents", AgentLimits(awake=1), trace=False)
        with closing(resources), closing(registry):
            yield resources, registry

    return start


def namespaces(resources: PlannerResources) -> Counter[str]:
    """Count the blocks of each namespace; a block may have copies in several tiers."""
    return Counter({entry.key: entry.owner for entry in resources.method.storage.entries()}.values())


def test_a_sleeping_agents_blocks_outlive_the_process_and_a_deleted_ones_do_not(process: Process) -> None:
    skills, count = ["go to countertop_1", "go to countertop_2"], 0
    with process() as (resources, registry):
        for name in ("kitchen", "bath"):
            registry.create(name)
            with registry.use(name) as agent:
                agent.observe([ROBOT, *MUGS])
                first = agent.plan("find a mug", skills)
            count = count or namespaces(resources)["kitchen"]  # more may be encoded ahead until it sleeps
        assert registry.loaded_count == 1 and namespaces(resources)["kitchen"] >= count > 0
    with process() as (resources, registry):
        with registry.use("bath") as agent:
            agent.observe(MUGS[:1])
            again = agent.plan("find a mug", skills)
        assert again.skill == first.skill and resources.method.storage.stats()["hits"] > 0
        registry.delete("kitchen")
    with process() as (resources, registry):
        released = namespaces(resources)
        assert released["bath"] > 0 and not released["kitchen"]
        registry.delete("bath")  # the first thing that this process does
    with process() as (resources, _):
        assert not namespaces(resources)


def test_agents_wake_up_with_their_memory(serve: Serve) -> None:
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


def test_threads_share_agents_of_which_one_is_awake(resources: PlannerResources, tmp_path: Path) -> None:
    registry = AgentRegistry(resources, tmp_path, AgentLimits(awake=1), trace=False)

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
    registry.close()
    assert registry.names() == ["robot-0", "robot-1", "robot-2"]


def test_deleting_an_agent_deletes_its_conversations(serve: Serve) -> None:
    with serve() as server:
        body = {"prompt": "go to cabinet_1 " * 20, "tokens": 1}
        server.http.post("/v1/agents/kitchen/generate", json=body)
        assert server.http.post("/v1/agents/kitchen/generate", json=body).json()["kept"] > 0
        assert server.http.delete("/v1/agents/kitchen").status_code == 204
        assert server.http.delete("/v1/agents/kitchen").status_code == 404
        assert server.http.post("/v1/agents/kitchen/generate", json=body).json()["kept"] == 0


def test_a_deletion_during_other_calls_is_final(resources: PlannerResources, tmp_path: Path) -> None:
    """Each call succeeds or names the missing agent, and a journal has one owner."""
    registry = AgentRegistry(resources, tmp_path, trace=False)

    def work(call: Callable[[], None]) -> None:
        for _ in range(40):
            with suppress(NotFound, Conflict, ConfigError):
                call()

    def observe() -> None:
        with registry.use("kitchen") as agent:
            agent.observe([MUG])

    delete, create = partial(registry.delete, "kitchen"), partial(registry.create, "kitchen")
    at_once(*(partial(work, call) for call in (observe, observe, delete, delete, create)))
    if "kitchen" in registry.names():
        registry.delete("kitchen")
    assert not registry.loaded_count and not registry.names()
    registry.close()


def test_a_damaged_agent_changes_no_other_and_can_be_deleted(serve: Serve, tmp_path: Path) -> None:
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


def test_one_process_has_the_folder(resources: PlannerResources, tmp_path: Path) -> None:
    first = AgentRegistry(resources, tmp_path)
    with pytest.raises(ConfigError, match="another server or agent uses"):
        AgentRegistry(resources, tmp_path)
    first.close()
    AgentRegistry(resources, tmp_path).close()
