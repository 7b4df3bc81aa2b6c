"""Budgets of bytes, quotas, pins and time to live, in memory and on the disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keep_agent.errors import CapacityError
from memory.agents.manager import AgentMemories
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.laws.prompts import relative
from tests.memory.agents.reference import EXACT, Make, ReferenceMemories, answer, lines, say, size_of


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
    with pytest.raises(CapacityError, match="bytes are shared, pinned or within their quota, but host_bytes="):
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
    memories._disk.wait()
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


@dataclass
class Clock:
    """Clock of the files' times, put forward by the test."""

    ahead: float = 0.0
    began: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.began + self.ahead


def test_rows_expire_in_memory_and_on_the_disk(make: Make, tmp_path: Path) -> None:
    clock, text = Clock(), lines(60)
    memories = make(ttl_seconds=100, clock=clock)
    for agent in ("a", "b", "pinned"):
        say(memories, agent, text)
    memories.pin("pinned")
    memories.flush()
    clock.ahead = 60
    assert say(memories, "b", text)[0].origin == "hot"
    memories.flush()
    clock.ahead = 130
    assert say(memories, "a", text, persist=False)[0].origin == "cold"
    assert say(memories, "pinned", text, persist=False)[0].origin == "hot"
    memories.close()
    clock.ahead = 150
    fresh = make(ttl_seconds=100, clock=clock)
    fresh.pin("pinned")
    fresh.flush()
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["warm"] * 3
    clock.ahead = 400
    fresh = make(ttl_seconds=100, clock=clock)
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["cold"] * 3
    fresh._disk.wait()
    assert disk.entries(tmp_path / "rows") == []


def test_a_pinned_agents_file_does_not_expire(make: Make) -> None:
    clock, text = Clock(), lines(60)
    with make(clock=clock) as memories:
        say(memories, "a", text)
    for seconds, pinned, origin in ((1000, ["a"], "warm"), (2000, [], "cold")):
        clock.ahead = seconds
        fresh = make(clock=clock, ttl_seconds=100, pinned=pinned)
        fresh.flush()
        assert fresh.open("a", text).origin == origin
