"""Isolation of agents: texts, names, files and old caches never give another agent's rows; deletion is of one agent."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, ReferenceMemories, answer, lines, say
from tests.waiting import PATIENCE, until

BAD = ("", ".", "..", "../b", "a/b", "a\\b", "a b", "é", "con", "a\0", "x" * 65, "A-0/", "*")


@pytest.mark.parametrize("agent", BAD)
def test_unsafe_names_are_refused_by_every_method(agent: str, make: Make, tmp_path: Path) -> None:
    for memories in (make(), make(folder=None)):
        memories.share("house", "the house\n")
        for call in (
            lambda m: m.open(agent, "text\n"), lambda m: m.begin_with(agent, "house"), lambda m: m.forget(agent),
            lambda m: m.pin(agent), lambda m: m.pin(agent, False),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match="no safe name"):
                call(memories)
        assert memories.stats()["agents"] == 0
    assert {file.name for file in (tmp_path / "rows").glob("*")} <= {"index.json"}


def test_agents_with_equal_texts_share_no_rows(reference: ReferenceMemories) -> None:
    """The names differ in case only, have a common beginning, or look like a file name."""
    text = lines(90)
    names = ("a", "A", "a-", "a.b", "ab", disk.agent_path(Path(), "a", "m").name.split(".")[0])
    for name in names:
        assert reference.say(name, text).origin == "cold"
    for name in names:
        assert reference.say(name, text + lines(2)).origin == "hot"
    caches = [reference.memories._host[name, reference.memories.engine.model_key].cache for name in names]
    places = [extent.k.codes.untyped_storage().data_ptr() for cache in caches for extent in cache.extents]
    assert len(set(places)) == len(places) and all(a.open is not b.open for a, b in combinations(caches, 2))


def test_a_copy_of_another_agents_file_is_never_served(make: Make, engine: Engine, tmp_path: Path) -> None:
    memories, text, folder = make(), lines(90), tmp_path / "rows"
    say(memories, "owner", text)
    memories.flush()
    path = disk.agent_path(folder, "owner", engine.model_key)
    shutil.copy(path, disk.agent_path(folder, "thief", engine.model_key))
    shutil.copy(path, disk.agent_path(folder, "owner", "other model"))
    fresh = make()
    prompt = fresh.open("thief", text)
    assert (prompt.origin, prompt.reused) == ("cold", 0)
    assert len(fresh.damaged) == fresh.stats()["damaged"] == 1 and "'owner'" in fresh.damaged[0]


def test_a_prompts_cache_belongs_to_it_alone(reference: ReferenceMemories, engine: Engine) -> None:
    first = reference.say("a", lines(70))
    second = reference.say("a", lines(70) + lines(30, 1))
    for prompt in (first, second):
        fork = prompt.cache.fork()
        fork.cut(20)
        engine.extend(fork, list(range(200)))
    reference.say("a", lines(70) + lines(30, 1) + lines(3))


def test_forget_deletes_all_rows_of_one_agent_only(make: Make, engines: list[Engine]) -> None:
    memories, text = make(), lines(60)
    for engine in engines:
        memories.use(engine)
        for agent in ("a", "A", "a-b"):
            say(memories, agent, text)
    prompt = memories.open("a", text + lines(1))
    answer(memories, prompt)
    memories.forget("a")
    with pytest.raises(ConfigError, match="'a' is not under way"):
        memories.finish(prompt)
    memories.abandon(prompt)
    memories.flush()
    assert {entry.owner for entry in disk.entries(memories.folder)} == {"A", "a-b"}
    for engine in engines:
        memories.use(engine)
        assert [say(memories, agent, text)[0].origin for agent in "aA"] == ["cold", "hot"]


def test_forget_waits_for_a_write_and_cancels_the_queued_ones(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = make()
    memories._disk.wait()
    writing, gate, real = threading.Event(), threading.Event(), disk.save_agent

    def slow(*arguments: Any) -> Path:
        writing.set()
        gate.wait(PATIENCE)
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    for agent in ("a", "b", "b"):
        say(memories, agent, lines(40))
    assert writing.wait(PATIENCE)
    done = ThreadPoolExecutor(1).submit(lambda: [memories.forget(agent) for agent in "ba"])
    until(lambda: "a" in memories._deleting or done.done())
    assert not done.done(), "a is just being written"
    gate.set()
    done.result(PATIENCE)
    memories.flush()
    assert disk.entries(memories.folder) == [] and say(memories, "a", lines(40))[0].origin == "cold"


def test_an_agent_forgotten_while_its_prompt_opens_stays_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows were read before the deletion, after which the agent began a new text."""
    with make() as memories:
        say(memories, "a", lines(40))
    memories, forgotten = make(), []
    real = memories._disk.get

    def slow(*arguments: Any) -> Any:
        rows = real(*arguments)
        if not forgotten:
            forgotten.append("a")
            memories.forget("a")
            say(memories, "a", lines(20, 1))
        return rows

    monkeypatch.setattr(memories._disk, "get", slow)
    with pytest.raises(ConfigError, match="'a' is not under way"):
        memories.open("a", lines(40))
    assert memories.open("a", lines(40)).kind == "miss"
