"""Disks that are full or cannot be read: turns succeed, the error is raised by flush, and writing is repeated."""

from __future__ import annotations

import errno

import pytest

from keep_agent.errors import CapacityError, StorageError
from memory.files import agent_files as disk
from memory.files import atomic
from tests.memory.agents.reference import Make, lines, say


def test_failed_writes_are_repeated_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk disturbs no turn; flush says so, and writes when there is room again."""
    memories, text = make(), lines(40)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
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


def full(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_flush_tries_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        say(memories, "a", text)
        memories._disk.wait()
    memories.flush()
    assert memories.stats()["failed"] == 0 and make().open("a", text).origin == "warm"


def test_a_flush_of_some_agents_raises_no_error_of_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        say(memories, "secret", text)
        memories._disk.wait()
        say(memories, "mine", text)
        with pytest.raises(CapacityError):
            memories.flush({"mine"})
        memories.flush({"nobody"})
    memories.flush({"mine"})
    assert make().open("mine", text).origin == "warm" and memories.stats()["failed"] == 1
    memories.flush()
    assert make().open("secret", text).origin == "warm"


def test_evicted_rows_that_cannot_be_written_raise_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    say(memories, "a", text)
    memories.flush()
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        memories.host_bytes = 1
        say(memories, "a", text + lines(3))
    with pytest.raises(CapacityError):
        memories.flush()
    memories.flush()
    prompt = memories.open("a", text + lines(3))
    assert (prompt.origin, prompt.kind) == ("warm", "extend"), "what had been written before is still there"


def test_a_disk_that_cannot_be_read_is_no_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as memories:
        say(memories, "a", lines(40))
    fresh = make()

    def broken(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(disk, "open_agent", broken)
    assert fresh.open("a", lines(40)).origin == "cold" and "Too many" in fresh.damaged[0]


def test_one_file_that_cannot_be_read_is_one_agents_affair(make: Make) -> None:
    """A folder lies in its place: it is reported, and all others are found and written as ever."""
    with make() as memories:
        say(memories, "b", lines(40))
    path = disk.agent_path(memories.folder, "a", memories.engine.model_key)
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
