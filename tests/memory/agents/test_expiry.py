"""Time to live of rows in memory and on the disk, from which pinned agents are exempt."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, lines, say


@dataclass
class Clock:
    """Stands where it began, and is put forward."""

    ahead: float = 0.0
    began: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.began + self.ahead


def test_rows_are_forgotten_in_time_on_the_disk_too(make: Make, tmp_path: Path) -> None:
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
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["warm", "warm", "warm"]
    clock.ahead = 400
    fresh = make(ttl_seconds=100, clock=clock)
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["cold"] * 3
    fresh._disk.wait()
    assert disk.entries(tmp_path / "rows") == []


def test_a_pin_outlives_the_time_on_the_disk(make: Make) -> None:
    clock, text = Clock(), lines(60)
    memories = make(clock=clock)
    say(memories, "a", text)
    memories.close()
    clock.ahead = 1000
    fresh = make(clock=clock, ttl_seconds=100, pinned=["a"])
    fresh.flush()
    assert fresh.open("a", text).origin == "warm"
    clock.ahead = 2000
    fresh = make(clock=clock, ttl_seconds=100)
    fresh.flush()
    assert fresh.open("a", text).origin == "cold"
