"""Isolation of agents: equal texts, similar names, copied files and old caches never give another agent's rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.files import agent_files as disk
from tests.memory.agents.reference import Make, ReferenceMemories, lines, say

BAD = ("", ".", "..", "../b", "a/b", "a\\b", "a b", "é", "con", "a\0", "x" * 65, "A-0/", "*")


@pytest.mark.parametrize("agent", BAD)
def test_agents_named_badly(agent: str, make: Make, tmp_path: Path) -> None:
    """With a folder or without one, whatever is asked; nothing is left behind."""
    for memories in (make(), make(folder=None)):
        memories.share("house", "the house\n")
        for call in (
            lambda m: m.open(agent, "text\n"), lambda m: m.behind(agent, "house"), lambda m: m.forget(agent),
            lambda m: m.pin(agent), lambda m: m.pin(agent, False),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match="no safe name"):
                call(memories)
        assert memories.stats()["agents"] == 0
    assert {file.name for file in (tmp_path / "rows").glob("*")} <= {"index.json"}


def test_agents_with_equal_texts_share_nothing(reference: ReferenceMemories) -> None:
    """Names that differ in upper case, begin alike, or look like a file's name."""
    text = lines(90)
    names = ("a", "A", "a-", "a.b", "ab", disk.agent_path(Path(), "a", "m").name.split(".")[0])
    for name in names:
        assert reference.say(name, text).origin == "cold"
    for name in names:
        assert reference.say(name, text + lines(2)).origin == "hot"
    held = [reference.memories._host[name, reference.memories.engine.model_key].cache for name in names]
    places = [extent.k.codes.untyped_storage().data_ptr() for cache in held for extent in cache.extents]
    assert len(set(places)) == len(places)
    for cache in held:
        assert len({id(cache.open) for cache in held}) == len(held)


def test_a_file_with_another_owner_is_never_served(make: Make, engine: Engine, tmp_path: Path) -> None:
    memories, text = make(), lines(90)
    say(memories, "mine", text)
    memories.flush()
    folder = tmp_path / "rows"
    mine = disk.agent_path(folder, "mine", engine.model_key)
    shutil.copy(mine, disk.agent_path(folder, "other", engine.model_key))
    shutil.copy(mine, disk.agent_path(folder, "mine", "other model"))
    fresh = make()
    prompt = fresh.open("other", text)
    assert (prompt.origin, prompt.reused) == ("cold", 0)
    assert len(fresh.damaged) == fresh.stats()["damaged"] == 1 and "'mine'" in fresh.damaged[0]


def test_a_prompts_cache_belongs_to_it_alone(reference: ReferenceMemories, engine: Engine) -> None:
    """An agent that goes on in an old prompt's cache changes neither its own memory nor what is written of it."""
    first = reference.say("a", lines(70))
    second = reference.say("a", lines(70) + lines(30, 1))
    for prompt in (first, second):
        fork = prompt.cache.fork()
        fork.cut(20)
        engine.extend(fork, list(range(200)))
    reference.say("a", lines(70) + lines(30, 1) + lines(3))
