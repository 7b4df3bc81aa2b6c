"""Forgetting an agent: its rows in memory, in files, waiting to be written or being read, and no others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, answer, lines, say
from tests.waiting import PATIENCE, until


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
        assert say(memories, "a", text)[0].origin == "cold"
        assert say(memories, "A", text)[0].origin == "hot"


def test_rows_that_wait_to_be_written_are_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = make()
    memories._disk.wait()
    begun, gate, real = threading.Event(), threading.Event(), disk.save_agent

    def slow(*arguments: Any) -> Path:
        begun.set()
        gate.wait(PATIENCE)
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    for agent in ("a", "b", "b"):
        say(memories, agent, lines(40))
    assert begun.wait(PATIENCE)
    done = ThreadPoolExecutor(1).submit(lambda: [memories.forget(agent) for agent in "ba"])
    until(lambda: "a" in memories._deleting or done.done())  # it has come to "a", and stays there
    assert not done.done(), "a is just being written"
    gate.set()
    done.result(PATIENCE)
    memories.flush()
    assert disk.entries(memories.folder) == []
    assert say(memories, "a", lines(40))[0].origin == "cold"


def test_an_agent_forgotten_while_its_prompt_opens_stays_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows had been read before; meanwhile the agent was forgotten, and began anew."""
    with make() as memories:
        say(memories, "a", lines(40))
    memories, forgotten = make(), []
    real = memories._disk.get

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        if not forgotten:
            forgotten.append("a")
            memories.forget("a")
            say(memories, "a", lines(20, 1))
        return found

    monkeypatch.setattr(memories._disk, "get", slow)
    with pytest.raises(ConfigError, match="'a' is not under way"):
        memories.open("a", lines(40))
    assert memories.open("a", lines(40)).kind == "miss"
