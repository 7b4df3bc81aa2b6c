"""Agents' files that fail, are damaged, or are read after a restart: the same bits, or no rows."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from keep_agent.errors import CapacityError, StorageError
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.files import agent_files as disk
from memory.kv_cache.quantization import PackFormat
from tests.memory.agents.reference import Make, ReferenceMemories, answer, cold, lines, say
from tests.memory.storage.disks import flipped, full_disk


@pytest.fixture
def path(tmp_path: Path, engine: Engine) -> Path:
    return disk.agent_path(tmp_path / "rows", "a", engine.model_key)


def check_damaged(make: Make, path: Path, text: str) -> None:
    """Check that a damaged file of agent a is reported, and that the agent starts without rows."""
    fresh = make()
    prompt = fresh.open("a", text)
    assert (prompt.origin, prompt.reused, prompt.kind) == ("cold", 0, "miss")
    assert len(fresh.damaged) == 1 and str(path) in fresh.damaged[0]
    fresh.abandon(prompt)


@pytest.mark.parametrize("times", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_flipped_bit_and_every_cut_is_detected(make: Make, path: Path, times: int) -> None:
    text = lines(160)
    with make() as memories:
        say(memories, "a", text)
    raw, chance = path.read_bytes(), random.Random(5)
    for number in range(times):
        cut = raw[: chance.randrange(len(raw))]
        path.write_bytes(cut if number % 2 else flipped(raw, chance.randrange(8 * len(raw))))
        check_damaged(make, path, text)
    path.write_bytes(raw)
    assert make().open("a", text).origin == "warm"


def test_a_damaged_file_is_reported_and_written_again(
    make: Make, engine: Engine, coder: TokenizerCoder, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines(100)
    with make() as memories:
        for agent in "ab":
            say(memories, agent, text)
    path.write_bytes(path.read_bytes()[:-9])
    with make() as memories:
        _, logits = say(memories, "a", text)
        assert torch.equal(logits, cold(engine, coder, text))
        assert "agent 'a' cannot be used and is computed" in caplog.text
        assert memories.stats()["damaged"] == 1 and say(memories, "b", text)[0].origin == "warm"
    assert make().open("a", text).origin == "warm"


def test_an_intact_file_with_unexpected_content_is_ignored(make: Make, engine: Engine, path: Path) -> None:
    text = lines(30)
    with make() as memories:
        say(memories, "a", text)
    header = dict(disk.open_agent(path.parent, "a", engine.model_key).header)
    for name in ("agent", "model", "tokens"):
        del header[name]
    for wrong in ({}, header | {"told": None}, header | {"told": {"text": 3}}, header | {"format": {"bits": 5}}):
        disk.save_agent(path.parent, "a", engine.model_key, 3, {}, wrong)
        check_damaged(make, path, text)


def test_failed_writes_are_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memories, text = make(), lines(40)
    with full_disk(monkeypatch):
        say(memories, "a", text)
        say(memories, "b", text)
        memories._disk.wait_for_writes()
        assert memories.stats()["failed"] == 2 and "the memory of agent 'a' could not be written" in caplog.text
        with pytest.raises(CapacityError, match="no room for"):
            memories.flush()
        assert say(memories, "a", text + lines(2))[0].origin == "hot"
        with pytest.raises(CapacityError):
            memories.close()
    fresh = make()
    assert fresh.open("a", text).origin == "cold"
    say(fresh, "b", text)
    fresh.flush()
    assert fresh.stats()["failed"] == 0 and make().open("b", text).origin == "warm"


def test_flushing_some_agents_raises_no_error_of_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with full_disk(monkeypatch):
        say(memories, "secret", text)
        memories._disk.wait_for_writes()
        say(memories, "own", text)
        with pytest.raises(CapacityError):
            memories.flush({"own"})
        memories.flush({"stranger"})
    memories.flush({"own"})
    assert make().open("own", text).origin == "warm" and memories.stats()["failed"] == 1
    memories.flush()
    assert make().open("secret", text).origin == "warm" and memories.stats()["failed"] == 0


def test_evicted_rows_that_cannot_be_written_raise_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    say(memories, "a", text)
    memories.flush()
    with full_disk(monkeypatch):
        memories.host_bytes = 1
        say(memories, "a", text + lines(3))
    with pytest.raises(CapacityError):
        memories.flush()
    memories.flush()
    prompt = memories.open("a", text + lines(3))
    assert (prompt.origin, prompt.kind) == ("warm", "extend"), "the earlier file is still there"


def test_a_read_error_is_a_miss(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as memories:
        say(memories, "a", lines(40))
    fresh = make()

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(disk, "open_agent", fail)
    assert fresh.open("a", lines(40)).origin == "cold" and "Too many" in fresh.damaged[0]


def test_an_unreadable_file_affects_its_own_agent_only(make: Make, path: Path) -> None:
    with make() as memories:
        say(memories, "b", lines(40))
    path.mkdir()
    fresh = make(disk_bytes=1 << 20, ttl_seconds=1e6)
    assert fresh.stats()["disk_bytes"] == disk.total_bytes(memories.folder) > 0
    assert fresh.open("b", lines(40)).origin == "warm"
    prompt = say(fresh, "a", lines(40))[0]
    assert prompt.origin == "cold" and f"{path} cannot be read" in fresh.damaged[0] and len(fresh.damaged) == 1
    with pytest.raises(StorageError, match="cannot be written .Is a directory"):
        fresh.flush()
    assert fresh.stats()["failed"] == 1
    path.rmdir()
    fresh.flush()
    assert fresh.stats()["failed"] == 0 and make().open("a", lines(40)).origin == "warm"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("keys", ["token", "channel"])
def test_a_warm_restart_gives_the_same_bits(bits: int, keys: Any, make: Make) -> None:
    memories = make(format=PackFormat(bits, keys=keys))
    texts = {agent: lines(count, count) for agent, count in (("a", 3), ("b", 16), ("c", 40), ("d", 130))}
    for agent, text in texts.items():
        say(memories, agent, text)
        say(memories, agent, text + lines(2))
    memories.flush()
    fresh = make(format=PackFormat(bits, keys=keys))
    for agent, text in texts.items():
        for more in (text + lines(2), text + lines(2) + lines(1, 1), text[: int(0.95 * len(text))], lines(2, 8)):
            hot, expected = say(memories, agent, more, persist=False)
            warm, logits = say(fresh, agent, more, persist=False)
            assert torch.equal(logits, expected) and (warm.reused, warm.kind) == (hot.reused, hot.kind)
            assert warm.token_text.to_json() == hot.token_text.to_json()
    assert not fresh.damaged


def test_mapped_rows_outlive_their_file(make: Make, tmp_path: Path) -> None:
    memories, text = make(), lines(150)
    say(memories, "a", text)
    memories.flush()
    fresh = make()
    prompt = fresh.open("a", text + lines(2))
    assert prompt.origin == "warm"
    say(memories, "a", lines(9))
    memories.flush()
    disk.evict(tmp_path / "rows", 0)
    first = answer(fresh, prompt)
    fresh.finish(prompt)
    again, second = say(fresh, "a", text + lines(2) + lines(3, 1))
    assert again.origin == "hot"
    alone = make(folder=None)
    for more, logits in ((text, None), (text + lines(2), first), (text + lines(2) + lines(3, 1), second)):
        _, expected = say(alone, "a", more)
        assert logits is None or torch.equal(logits, expected)


def swapped(coder: TokenizerCoder) -> TokenizerCoder:
    tokenizer = json.loads(coder._tokenizer.to_str())
    vocab = tokenizer["model"]["vocab"]
    a, b = (coder._tokenizer.id_to_token(coder.encode(word).ids[-1]) for word in ("mug", "knife"))
    vocab[a], vocab[b] = vocab[b], vocab[a]
    return TokenizerCoder(Tokenizer.from_str(json.dumps(tokenizer)))


def test_rows_of_another_format_or_tokenizer_are_not_served(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    memories, text = make(), lines(80)
    say(memories, "a", text)
    memories.flush()
    different = swapped(coder)
    assert different.seams == coder.seams and different.encode("mug").ids != coder.encode("mug").ids
    strangers = (make(format=PackFormat(8)), make(start=(1,)), AgentMemories(engine, different, folder=memories.folder))
    assert [fresh.open("a", text).origin for fresh in (*strangers, make())] == ["cold"] * 3 + ["warm"]


def test_rows_of_another_model_stay_and_are_not_served(
    make: Make, engines: list[Engine], coder: TokenizerCoder
) -> None:
    memories = make()
    reference, text = ReferenceMemories(memories), lines(90)
    memories.share("house", lines(70, 5))
    memories.begin_with("b", "house")
    for number in (0, 1, 0, 1, 0):
        memories.use(engines[number])
        prompt = reference.say("a", text)
        assert prompt.model == engines[number].model_key
        text += lines(1, number)
        shared, _ = say(memories, "b", lines(70, 5) + lines(3))
        assert shared.model == prompt.model and shared.reused > 0
    assert len({key[1] for key in reference.known}) == 2 and memories.stats()["agents"] == 4
    first = memories.open("a", text)
    memories.use(engines[1])
    second = memories.open("a", text)
    engines[0].extend(first.cache, first.new)
    for prompt in (first, second):
        memories.finish(prompt)
    memories.close()
    fresh = make()
    for engine in engines:
        fresh.use(engine)
        assert fresh.open("a", text).origin == "warm"
