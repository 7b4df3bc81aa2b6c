"""Damaged files of agents, and files with other content: they are reported, and the agent starts without rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from memory.agents.manager import AgentPrompt
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, cold, lines, say


def damaged(memories: Make, path: Path, raw: bytes, text: str) -> AgentPrompt:
    """A prompt over a damaged file: it is reported, and the agent begins anew."""
    path.write_bytes(raw)
    fresh = memories()
    prompt = fresh.open("a", text)
    assert (prompt.origin, prompt.reused, prompt.kind) == ("cold", 0, "miss")
    assert len(fresh.damaged) == 1 and str(path) in fresh.damaged[0]
    fresh.abandon(prompt)
    return prompt


def flip_and_cut(make: Make, engine: Engine, times: int, tmp_path: Path) -> None:
    text = lines(160)
    with make() as memories:
        say(memories, "a", text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    raw, chance = path.read_bytes(), random.Random(5)
    for number in range(times):
        if number % 2:
            copy = raw[: chance.randrange(len(raw))]
        else:
            copy = bytearray(raw)
            bit = chance.randrange(8 * len(raw))
            copy[bit // 8] ^= 1 << bit % 8
        damaged(make, path, bytes(copy), text)
    path.write_bytes(raw)
    assert make().open("a", text).origin == "warm"


def test_every_flip_and_every_cut_is_found(make: Make, engine: Engine, tmp_path: Path) -> None:
    flip_and_cut(make, engine, 50, tmp_path)


@pytest.mark.slow
def test_a_thousand_flips_and_cuts_are_found(make: Make, engine: Engine, tmp_path: Path) -> None:
    flip_and_cut(make, engine, 1000, tmp_path)


def test_a_damaged_file_is_reported_and_the_agent_served_cold(
    make: Make, engine: Engine, coder: TokenizerCoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines(100)
    with make() as memories:
        for agent in "ab":
            say(memories, agent, text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    path.write_bytes(path.read_bytes()[:-9])
    memories = make()
    _, logits = say(memories, "a", text)
    assert torch.equal(logits, cold(engine, coder, text))
    assert "agent 'a' cannot be used and is computed anew" in caplog.text
    assert memories.stats()["damaged"] == 1 and say(memories, "b", text)[0].origin == "warm"
    memories.close()
    assert make().open("a", text).origin == "warm", "it was written anew"


def test_a_sound_file_that_holds_something_else_is_ignored(make: Make, engine: Engine, tmp_path: Path) -> None:
    text = lines(30)
    with make() as memories:
        say(memories, "a", text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    header = dict(disk.open_agent(tmp_path / "rows", "a", engine.model_key).header)
    for name in ("agent", "model", "tokens"):
        del header[name]
    for wrong in ({}, header | {"told": None}, header | {"told": {"text": 3}}, header | {"format": {"bits": 5}}):
        disk.save_agent(tmp_path / "rows", "a", engine.model_key, 3, {}, wrong)
        damaged(make, path, path.read_bytes(), text)
