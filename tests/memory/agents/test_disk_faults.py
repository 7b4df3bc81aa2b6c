"""Agents' files that are damaged, unreadable or cannot be written: reported, and the agent's turn succeeds."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CapacityError, StorageError
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.files import agent_files as disk
from memory.files import atomic
from tests.memory.agents.reference import Make, cold, lines, say


@pytest.fixture
def path(tmp_path: Path, engine: Engine) -> Path:
    """File of agent a."""
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
        copy = bytearray(raw[: chance.randrange(len(raw))] if number % 2 else raw)
        if number % 2 == 0:
            bit = chance.randrange(8 * len(raw))
            copy[bit // 8] ^= 1 << bit % 8
        path.write_bytes(copy)
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


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        yield


def test_failed_writes_are_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memories, text = make(), lines(40)
    with full_disk(monkeypatch):
        say(memories, "a", text)
        say(memories, "b", text)
        memories._disk.wait()
        assert memories.stats()["failed"] == 2 and "'a' remembers could not be written" in caplog.text
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


def test_flush_repeats_failed_writes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with full_disk(monkeypatch):
        say(memories, "a", text)
        memories._disk.wait()
    memories.flush()
    assert memories.stats()["failed"] == 0 and make().open("a", text).origin == "warm"


def test_flushing_some_agents_raises_no_error_of_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with full_disk(monkeypatch):
        say(memories, "secret", text)
        memories._disk.wait()
        say(memories, "own", text)
        with pytest.raises(CapacityError):
            memories.flush({"own"})
        memories.flush({"stranger"})
    memories.flush({"own"})
    assert make().open("own", text).origin == "warm" and memories.stats()["failed"] == 1
    memories.flush()
    assert make().open("secret", text).origin == "warm"


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
