"""Registry of agents: sleep, deletion and replacement, and the errors of requests that wait meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from keep_agent.agent.durable import JOURNAL, MEMORY
from keep_agent.config.planner_factory import Brain, brain_of
from keep_agent.errors import ConfigError, CorruptError, DataError, ModelError
from keep_agent.server.error_handlers import NotFound, Unavailable
from keep_agent.server.planning.registry import Registry
from keep_agent.server.settings import AgentLimits
from tests.waiting import PATIENCE, until

END = "journal.end"
MUG, CUP = (Fact(f"{name}_1", "object", name) for name in ("mug", "cup"))


@pytest.fixture
def registry(brain: Brain, tmp_path: Path) -> Iterator[Registry]:
    """Make a registry with an agent that knows a mug."""
    instance = Registry(brain, tmp_path, trace=False)
    instance.create("kitchen")
    with instance.use("kitchen") as agent:
        agent.observe([MUG])
    yield instance
    instance.close()


def refuse(*arguments: Any, **more: Any) -> None:
    raise OSError(28, "No space left on device")


def test_deleting_writes_and_reads_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("keep_agent.agent.durable.write_packed", lambda *arguments: pytest.fail("it was written"))
        registry.delete("kitchen")
    assert not registry.names() and not registry.awake
    registry.create("kitchen")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_wake", lambda *arguments: pytest.fail("it was woken up"))
        registry.delete("kitchen")
    assert not registry.names()


def test_an_agent_that_could_not_be_deleted_is_still_there(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "rename", refuse)
        registry.delete("kitchen")
    with registry.use("kitchen") as agent:
        agent.observe([CUP])
        assert agent.agent.segments == 2


@pytest.mark.parametrize("damaged", [MEMORY, JOURNAL])
def test_a_damaged_agent_takes_another_memory(brain: Brain, tmp_path: Path, damaged: str) -> None:
    first = Registry(brain, tmp_path, trace=False)
    first.create("kitchen")
    with first.use("kitchen") as agent:
        agent.observe([MUG])
        state = agent.dump()
        agent.observe([CUP])
        agent.compact()
        for _ in range(3):
            agent.observe([CUP])
    copy = {name: (agent.folder / name).read_bytes() for name in (MEMORY, JOURNAL, END)}
    first.close()
    for name, content in copy.items():  # as if it had been killed
        (agent.folder / name).write_bytes(content)
    (agent.folder / damaged).write_bytes(copy[damaged].replace(b"cup", b"cap"))
    registry = Registry(brain, tmp_path, trace=False)
    with pytest.raises(CorruptError), registry.use("kitchen"):
        pass
    with pytest.raises(DataError, match="no agent's memory"):
        registry.replace("kitchen", {})
    with pytest.raises(CorruptError), registry.use("kitchen"):  # what was there has not changed
        pass
    registry.replace("kitchen", state)
    for _ in range(2):
        with registry.use("kitchen") as agent:
            assert agent.dump() == state
        registry.close()
        registry = Registry(brain, tmp_path, trace=False)
    registry.replace("kitchen", state)
    registry.close()


@pytest.mark.parametrize("damaged", [MEMORY, JOURNAL])
def test_a_memory_that_cannot_be_written_takes_nothing_away(
    brain: Brain, tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a damaged agent keeps its files on a full disk, so that they can be repaired by hand."""
    registry = Registry(brain, tmp_path, trace=False)
    registry.create("kitchen")
    with registry.use("kitchen") as agent:
        state = agent.dump()
        agent.observe([MUG])
        agent.compact()
        agent.observe([CUP])
        folder = agent.folder
        remaining = {name: (folder / name).read_bytes() for name in (MEMORY, JOURNAL, END)}
    registry.close()
    broken = {**remaining, damaged: remaining[damaged].replace(b"1", b"7", 3) + b"x\n"}
    for name, content in broken.items():
        (folder / name).write_bytes(content)
    registry = Registry(brain, tmp_path, trace=False)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("keep_agent.agent.durable.write_packed", refuse)
        registry.replace("kitchen", state)
    assert {name: (folder / name).read_bytes() for name in (MEMORY, JOURNAL)} == {
        name: broken[name] for name in (MEMORY, JOURNAL)
    }
    (folder / damaged).write_bytes(remaining[damaged])  # mended
    with registry.use("kitchen") as agent:
        assert agent.agent.segments == 2
    registry.replace("kitchen", state)
    registry.close()
    registry = Registry(brain, tmp_path, trace=False)
    with registry.use("kitchen") as agent:
        assert agent.agent.segments == 0, "no line of the old journal is played on the new memory"
    registry.close()


def test_who_waits_for_an_agent_while_all_are_put_to_sleep_does_not_wake_it(registry: Registry) -> None:
    failed: list[BaseException] = []

    def use() -> None:
        try:
            with registry.use("kitchen"):
                pass
        except BaseException as error:
            failed.append(error)

    entry = registry._entries["kitchen"]
    with entry.lock:
        threads = [threading.Thread(target=registry.close), threading.Thread(target=use)]
        threads[0].start()
        until(lambda: registry._is_closed)
        threads[1].start()
        until(lambda: entry.users)  # it comes to the lock next
    for thread in threads:
        thread.join(PATIENCE)
    assert not registry.awake
    assert [type(error) for error in failed] == [Unavailable]
    with pytest.raises(Unavailable, match="ending"), registry.use("kitchen"):
        pass


def test_who_uses_an_agent_that_is_deleted_is_told_so(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no agent 'kitchen'"), registry.use("kitchen") as agent:
        registry.delete("kitchen")
        agent.observe([CUP])


def test_who_uses_an_agent_that_is_being_deleted_is_told_so(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, received = threading.Event(), threading.Event()
    sleep = registry._put_to_sleep

    def slowly(*arguments: Any, **more: Any) -> None:
        sleep(*arguments, **more)
        closed.set()
        received.wait(PATIENCE)

    monkeypatch.setattr(registry, "_put_to_sleep", slowly)
    with pytest.raises(NotFound, match="no agent 'kitchen'"), registry.use("kitchen") as agent:
        deleting = threading.Thread(target=registry.delete, args=("kitchen",))
        deleting.start()
        assert closed.wait(PATIENCE)
        threading.Timer(0.05, received.set).start()  # while it waits to be told
        agent.observe([CUP])
    deleting.join(PATIENCE)


def test_what_is_only_looked_at_is_not_written(brain: Brain, tmp_path: Path) -> None:
    registry = Registry(brain, tmp_path, AgentLimits(awake=1), trace=False)
    for name in ("kitchen", "garage"):
        registry.create(name)
        with registry.use(name) as agent:
            agent.observe([MUG])
    folder = agent.folder.parent
    with registry.use("kitchen"):
        pass
    before = {path: path.stat().st_ino for path in folder.glob(f"*/{MEMORY}")}
    assert len(before) == 2
    for name in ("kitchen", "garage") * 3:
        with registry.use(name) as agent:
            assert agent.agent.segments == 1
    assert {path: path.stat().st_ino for path in folder.glob(f"*/{MEMORY}")} == before
    registry.close()


@pytest.mark.parametrize(
    ("override", "text"),
    [("planner.max_new_tokens=0", "max_new_tokens=0 leaves no room"), ("planner=intentkv", "no retention head in")],
)
def test_what_no_planner_can_be_made_with_is_refused_at_once(tiny_model: Path, override: str, text: str) -> None:
    """Check that the settings are refused at start, and that no thread of the model remains."""
    before = set(threading.enumerate())
    with pytest.raises((ConfigError, ModelError), match=text):
        brain_of([f"model={tiny_model}", "prompt.encoder=hashed", override])
    # transformers does not wait for its threads that read weights: they may end a little later
    until(lambda: set(threading.enumerate()) <= before)
