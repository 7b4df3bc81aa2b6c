"""Budgets of agents in memory and on the disk, and their isolation: no agent gets or loses another's rows."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import CapacityError, ConfigError
from memory.agents.manager import AgentMemories
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.laws.prompts import relative
from tests.memory.agents.reference import EXACT, Make, ReferenceMemories, answer, lines, say, size_of
from tests.waiting import PATIENCE, FakeTime, until


def hot(memories: AgentMemories) -> list[str]:
    return [key[0] for key in memories._host]


def stored(folder: Path) -> set[str]:
    return {entry.owner for entry in disk.entries(folder)}


def test_least_recently_used_agents_above_their_quota_are_evicted_first(make: Make) -> None:
    probe = make(folder=None)
    for agent, count in (("big", 150), ("small", 20)):
        say(probe, agent, lines(count))
    big, small = size_of(probe, "big"), size_of(probe, "small")
    memories = make(host_bytes=2 * big + 3 * small, quota_bytes=small)
    reference = ReferenceMemories(memories)
    for agent, count in (("s1", 20), ("b1", 150), ("s2", 20), ("b2", 150), ("s3", 20)):
        reference.say(agent, lines(count))
    assert hot(memories) == ["s1", "b1", "s2", "b2", "s3"]
    reference.say("b1", lines(150))
    reference.say("b3", lines(150))
    assert hot(memories) == ["s1", "s2", "s3", "b1", "b3"], "b2 was the least recently used above its quota"
    reference.known["b2", memories.engine.model_key].where = "warm"
    reference.say("b2", lines(150) + lines(1))
    assert hot(memories) == ["s1", "s2", "s3", "b3", "b2"]
    memories.pin("b3")
    reference.known["b1", memories.engine.model_key].where = "warm"
    reference.say("b1", lines(150))
    assert hot(memories) == ["s1", "s2", "s3", "b3", "b1"] and memories.stats()["bytes"] <= memories.host_bytes
    memories.host_bytes = big + small
    memories.pin("b3", False)
    with pytest.raises(CapacityError, match="bytes are shared, pinned or within a quota, but host_bytes="):
        memories.quota_bytes = big * 2
        reference.say("b3", lines(150))
    assert "b3" not in hot(memories), "the agent of the prompt itself is evicted last"
    assert stored(memories.folder) >= {"s1", "s2", "s3", "b1", "b2", "b3"}


def test_without_a_folder_evicted_rows_are_lost(make: Make) -> None:
    memories = make(folder=None, host_bytes=1)
    for _ in range(2):
        assert say(memories, "a", lines(9))[0].origin == "cold" and hot(memories) == []
    memories.flush()
    assert memories.stats() == {"agents": 0, "bytes": 0, "disk_bytes": 0, "damaged": 0, "failed": 0}


def test_rows_of_an_open_prompt_are_not_evicted(make: Make) -> None:
    memories = make(host_bytes=1)
    reference = ReferenceMemories(memories)
    reference.say("a", lines(50))
    reference.known["a", memories.engine.model_key].where = "warm"
    prompt, new = reference.open("a", lines(50) + lines(3))
    reference.say("b", lines(50))
    assert hot(memories) == ["a"]
    assert relative(answer(memories, prompt), new.dense.append(prompt.new)[-1:]) < EXACT
    memories.finish(prompt)
    assert hot(memories) == []


def test_rows_that_were_not_persisted_are_written_when_evicted(make: Make, engine: Engine, tmp_path: Path) -> None:
    memories, text = make(), lines(60)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    say(memories, "a", text, persist=False)
    memories._disk.wait_for_writes()
    assert not path.exists()
    memories.host_bytes = 1
    say(memories, "b", text, persist=False)
    assert path.exists() and hot(memories) == []
    memories.host_bytes = None
    assert say(memories, "a", text, persist=False)[0].origin == "warm"
    memories.flush()
    state = path.stat().st_mtime_ns
    memories.flush()
    assert path.stat().st_mtime_ns == state, "unchanged rows are not written again"


def test_the_disk_has_a_budget_of_its_own(make: Make, tmp_path: Path) -> None:
    memories = make()
    for agent in "abc":
        say(memories, agent, lines(60))
        memories.flush()
    size = memories.stats()["disk_bytes"] // 3
    memories.close()
    memories = make(disk_bytes=2 * size + size // 2)
    memories.flush()
    assert stored(tmp_path / "rows") == {"b", "c"}
    memories.pin("b")
    for agent in "def":
        say(memories, agent, lines(60))
        memories.flush()
    assert stored(tmp_path / "rows") == {"b", "f"} and memories.stats()["disk_bytes"] <= memories.disk_bytes


def test_an_agents_file_within_its_quota_is_not_evicted_for_others(make: Make, tmp_path: Path) -> None:
    memories = make()
    say(memories, "small", lines(20))
    memories.flush()
    small = memories.stats()["disk_bytes"]
    memories.close()
    memories = make(disk_bytes=3 * small, quota_bytes=small)
    for turn in range(4):
        for agent in ("big", "larger"):
            say(memories, agent, lines(100 + 50 * turn))
            memories.flush()
    assert stored(tmp_path / "rows") == {"small"}, "the large files are above their quota"
    memories.close()
    memories = make(quota_bytes=small)
    assert memories.open("small", lines(20)).origin == "warm"
    memories.close()
    make(disk_bytes=small - 1, quota_bytes=small - 1).flush()
    assert not disk.entries(tmp_path / "rows"), "above its quota the small file is evicted too"


def test_rows_expire_in_memory_and_on_the_disk(make: Make, tmp_path: Path) -> None:
    clock, text = FakeTime(), lines(60)
    memories = make(ttl_seconds=100, clock=clock)
    for agent in ("a", "b", "pinned"):
        say(memories, agent, text)
    memories.pin("pinned")
    memories.flush()
    clock.sleep(60)
    assert say(memories, "b", text)[0].origin == "hot"
    memories.flush()
    clock.sleep(70)
    assert say(memories, "a", text, persist=False)[0].origin == "cold"
    assert say(memories, "pinned", text, persist=False)[0].origin == "hot"
    memories.close()
    clock.sleep(20)
    fresh = make(ttl_seconds=100, clock=clock)
    fresh.pin("pinned")
    fresh.flush()
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["warm"] * 3
    for pinned, origin in ((["pinned"], "warm"), ([], "cold")):
        clock.sleep(250)
        fresh = make(ttl_seconds=100, clock=clock, pinned=pinned)
        fresh.flush()
        assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["cold", "cold", origin]
    fresh._disk.wait_for_writes()
    assert disk.entries(tmp_path / "rows") == []


def test_unsafe_names_are_refused_by_every_method(make: Make, tmp_path: Path) -> None:
    for m in (make(), make(folder=None)):
        m.share("house", "the house\n")
        for call, *more in ((m.open, "text\n"), (m.begin_with, "house"), (m.forget,), (m.pin,), (m.pin, False)):
            for agent in ("", "../b", "a\0"):
                with pytest.raises(ConfigError, match="not a safe name"):
                    call(agent, *more)
        assert m.stats()["agents"] == 0
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
    assert len(set(places)) == len(places) and all(a.tail is not b.tail for a, b in combinations(caches, 2))


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
    with pytest.raises(ConfigError, match="'a' is not open"):
        memories.finish(prompt)
    memories.abandon(prompt)
    memories.flush()
    assert {entry.owner for entry in disk.entries(memories.folder)} == {"A", "a-b"}
    for engine in engines:
        memories.use(engine)
        assert [say(memories, agent, text)[0].origin for agent in "aA"] == ["cold", "hot"]


def test_forget_waits_for_a_write_and_cancels_the_queued_ones(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = make()
    memories._disk.wait_for_writes()
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
    with pytest.raises(ConfigError, match="'a' is not open"):
        memories.open("a", lines(40))
    assert memories.open("a", lines(40)).kind == "miss"
