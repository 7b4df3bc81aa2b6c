"""Writers of block files that fail, are killed or write at the same time: the old or the new file is complete."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from keep_agent.errors import CapacityError
from memory.files import atomic
from memory.files.atomic import clean, replacing
from memory.files.block_file import open_blocks, write_blocks
from tests.memory.files.conftest import assert_holds, filled
from tests.waiting import PATIENCE

FORK = multiprocessing.get_context("fork")  # a child does not load torch again


def content(state: int) -> dict[str, torch.Tensor]:
    blocks = 1 + state % 24
    shapes = {"k": ((blocks, 4, 1 << 12), torch.bfloat16), "v": ((blocks, 1 << 15), torch.uint8)}
    return {name: filled(shape, dtype, state) for name, (shape, dtype) in shapes.items()}


def state_of(path: Path) -> int:
    file = open_blocks(path)
    state = file.header["state"]
    assert_holds(file, content(state))
    return state


def write_state(path: Path, state: int) -> None:
    write_blocks(path, content(state), {"state": state})


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_leaves_the_old_file_and_nothing_else(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(path, 1)
    owner = os if step == "fsync" else Path
    for error, raised, sentence in (
        (OSError(errno.ENOSPC, "No space left"), CapacityError, r"no room for .*a\.safetensors \(No space left"),
        (OSError(errno.EIO, "broken"), OSError, "broken"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, Mock(side_effect=error))
            with pytest.raises(raised, match=sentence):
                write_state(path, 2)
        assert state_of(path) == 1 and [file.name for file in path.parent.iterdir()] == [path.name]


def die_at(path: Path, step: str, calls: int) -> None:
    """Write a state, and exit without cleanup at a call of ``step``."""
    counter = itertools.count(1)
    owner = os if step == "fsync" else Path
    real = getattr(owner, step)

    def call(*arguments: object) -> object:
        if next(counter) == calls:
            os._exit(9)
        return real(*arguments)

    setattr(owner, step, call)
    write_state(path, 2)


@pytest.mark.parametrize(("step", "calls", "state"), [("fsync", 1, 1), ("replace", 1, 1), ("fsync", 2, 2)])
def test_a_writer_that_dies_leaves_the_old_file_or_the_new_one(path: Path, step: str, calls: int, state: int) -> None:
    write_state(path, 1)
    child = FORK.Process(target=die_at, args=(path, step, calls))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 9 and state_of(path) == state
    assert len(clean(path.parent)) == (state == 1) and clean(path.parent) == [] and state_of(path) == state
    write_state(path, 3)
    assert state_of(path) == 3


def test_a_file_being_written_is_not_deleted(path: Path) -> None:
    with replacing(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert len(list(path.parent.iterdir())) == 1 and clean(path.parent) == []
    assert path.read_bytes() == b"half"
    (path.parent / ".other.tmp").touch()
    (path.parent / "a.partial").touch()
    assert clean(path.parent) == [] and clean(path.parent / "missing") == []


def test_cleaning_between_creation_and_lock_harms_no_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, removed = atomic.fcntl.flock, []

    def late(stream: object, how: int) -> None:
        if not removed:
            removed.append(None)
            removed.extend(clean(path.parent))
        lock(stream, how)

    monkeypatch.setattr(atomic.fcntl, "flock", late)
    write_state(path, 4)
    assert len(removed) == 2 and state_of(path) == 4
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_writers_of_one_path_never_mix(path: Path) -> None:
    write_state(path, 0)
    done = threading.Event()

    def read() -> None:
        over = False
        while not over:
            over = done.is_set()
            state_of(path)
            clean(path.parent)

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(lambda s: [write_state(path, s + 3 * i) for i in range(10)], s) for s in range(3)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        reader.result()
    assert state_of(path) in range(30) and [file.name for file in path.parent.iterdir()] == [path.name]


def write_on(path: Path, state: int, news: Connection) -> None:
    """Write states until killed; announce each before it is started and after it is done."""
    for number in itertools.count(state):
        news.send(("started", number))
        write_state(path, number)
        news.send(("done", number))


class Writer:
    """Process that writes a path, with the states that it announced until it was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = self.done = -1

    def start(self) -> None:
        self.news, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=write_on, args=(self.path, self.started + 1, sender))
        self.process.start()
        sender.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        while True:
            try:
                word, number = self.news.recv()
            except EOFError:
                break
            setattr(self, word, number)
        self.news.close()

    def check(self) -> None:
        if self.done >= 0 or self.path.exists():
            state = state_of(self.path)
            assert self.done <= state <= self.started
            self.done = state  # a later check must not see an older state


@pytest.mark.slow
def test_killed_two_hundred_times_under_load(tmp_path: Path) -> None:
    writers = [Writer(tmp_path / f"{name}.safetensors") for name in "ab"]
    chance, interrupted, leftovers = random.Random(2), 0, 0
    for _ in range(200):
        for writer in writers:
            writer.start()
        time.sleep(chance.uniform(0, 0.1))
        for writer in writers:
            writer.kill()
        interrupted += sum(writer.started > writer.done for writer in writers)
        for writer in writers:
            writer.check()
        leftovers += len(clean(tmp_path))
        assert {file.name for file in tmp_path.iterdir()} <= {writer.path.name for writer in writers}
    assert interrupted > 100
    assert leftovers > 50  # some kills must interrupt a write
