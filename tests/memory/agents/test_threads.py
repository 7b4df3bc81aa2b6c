"""Memories in several threads: slow writers delay no turn, and no row is another agent's."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, ReferenceMemories, answer, lines, say, size_of
from tests.waiting import PATIENCE, until


def test_open_waits_for_rows_that_are_being_evicted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    memories._disk.wait()
    gate, real = threading.Event(), disk.save_agent
    monkeypatch.setattr(disk, "save_agent", lambda *arguments: gate.wait(PATIENCE) and real(*arguments))
    memories.host_bytes = 1
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(say, memories, "a", text)
        until(lambda: not memories._disk._writer._done(("a", memories.engine.model_key)) and not memories._host)
        second = pool.submit(memories.open, "a", text)
        until(lambda: memories._open_prompts or second.done())  # it has begun to open
        assert not first.done() and not second.done()
        gate.set()
        assert (second.result(PATIENCE).origin, first.result(PATIENCE)[0].origin) == ("warm", "cold")


def test_a_slow_writer_delays_no_turn_and_writes_the_newest_rows(
    make: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = make()
    memories._disk.wait()
    gate, real, written = threading.Event(), disk.save_agent, []

    def slow(*arguments: Any) -> Path:
        gate.wait(PATIENCE)
        written.append((arguments[1], arguments[3]))
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    reference = ReferenceMemories(memories)
    for turn in range(5):
        for agent in "ab":
            reference.say(agent, lines(20) + lines(4 * turn, 1))
    gate.set()
    memories.flush()
    last = {agent: len(reference.known[agent, engine.model_key].token_text.ids) for agent in "ab"}
    assert len(written) <= 4 and dict(written) == last, "what waited was replaced by what came later"
    fresh = ReferenceMemories(make(), reference.known)
    for known in reference.known.values():
        known.where = "warm"
    for agent in "ab":
        fresh.say(agent, reference.text(agent) + lines(1, 2))


def test_many_threads(make: Make, engine: Engine) -> None:
    """Eight threads with two agents each, a budget for some of them, forgetting and flushing between: no wrong row."""
    probe = make(folder=None)
    say(probe, "a", lines(60))
    memories = make(host_bytes=6 * size_of(probe, "a"))
    memories.share("house", lines(40, 5))
    halfway = threading.Barrier(8)

    def live(number: int) -> int:
        chance, warm = random.Random(number), 0
        known: dict[str, str] = {}
        for turn in range(12):
            if turn == 6:
                halfway.wait(PATIENCE)  # so that all agents are there at once, which is more than the budget holds
            agent = f"{number}-{chance.randrange(2)}"
            if turn == 0:
                memories.behind(agent, "house")
            text = known.get(agent, lines(40, 5) if chance.random() < 0.5 else lines(30, number))
            text += lines(1 + chance.randrange(9), turn)
            prompt = memories.open(agent, text)
            warm += prompt.origin == "warm"
            assert prompt.cache.tokens == prompt.token_text.ids[: prompt.reused] and prompt.token_text.text == text
            if known.get(agent):
                assert prompt.reused >= len(memories.coder.encode(known[agent]).ids)
            with pytest.raises(ConfigError, match="under way"):
                memories.open(agent, text)
            found = answer(memories, prompt)
            if prompt.reused == 0:
                same = engine.extend(engine.new_cache(memories.format), prompt.token_text.ids).logits
                assert torch.equal(found, same)
            what = chance.random()
            if what < 0.1:
                memories.abandon(prompt)
            elif what < 0.2:
                memories.forget(agent)
                known.pop(agent, None)
            else:
                memories.finish(prompt)
                known[agent] = text
            if what > 0.9:
                memories.flush()
        return warm

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(live, range(8))) > 0
    memories.flush()
    assert memories.stats()["bytes"] <= memories.host_bytes and not memories._open_prompts
    assert memories.stats()["damaged"] == memories.stats()["failed"] == 0
