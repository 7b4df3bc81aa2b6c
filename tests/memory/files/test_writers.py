"""Atomic files and folders, and writers that fail, are killed or write at once: the old or the new file is complete."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from keep_agent.errors import CapacityError, ConfigError, StorageError
from memory.files import atomic, json_lines
from memory.files.atomic import create_folder, lock_folder, remove_temp, replace_file, write_atomic
from memory.files.background_writer import Writer
from memory.files.block_file import open_blocks, write_blocks
from memory.files.json_lines import LineFile
from tests.disk_log import log_of_disk
from tests.memory.files.conftest import assert_holds, filled
from tests.waiting import PATIENCE, until

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
    assert len(remove_temp(path.parent)) == (state == 1) and remove_temp(path.parent) == [] and state_of(path) == state
    write_state(path, 3)
    assert state_of(path) == 3


def test_a_file_being_written_is_not_deleted(path: Path) -> None:
    with replace_file(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert len(list(path.parent.iterdir())) == 1 and remove_temp(path.parent) == []
    assert path.read_bytes() == b"half"
    (path.parent / ".other.tmp").touch()
    (path.parent / "a.partial").touch()
    assert remove_temp(path.parent) == [] and remove_temp(path.parent / "missing") == []


def test_cleaning_between_creation_and_lock_harms_no_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, removed = atomic.fcntl.flock, []

    def late(stream: object, how: int) -> None:
        if not removed:
            removed.append(None)
            removed.extend(remove_temp(path.parent))
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
            remove_temp(path.parent)

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


NAMES = ("b", "a", "last")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_text_and_bytes_replace_a_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "new" / "a.json", "1 – “one”")
    assert contents(tmp_path / "new") == {"a.json": "1 – “one”"}
    write_atomic(tmp_path / "new" / "a.json", b"2")
    with pytest.raises(ZeroDivisionError), replace_file(tmp_path / "new" / "a.json") as stream:
        stream.write(b"3")
        raise ZeroDivisionError
    assert contents(tmp_path / "new") == {"a.json": "2"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_of_private_and_other_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for private in (False, True):
            with replace_file(tmp_path / str(private), private):
                pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"False": 0o666 & ~mask, "True": 0o600}


def test_a_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = log_of_disk(monkeypatch, "replace")
    write_atomic(tmp_path / "a", "1")
    assert calls == ["file 1", "name a", "folder"]


def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(StorageError, match=f"{name} is a device, pipe or socket: name a file"):
            write_atomic(tmp_path / name, "1")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link"}
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_char_device()


def test_without_locks_files_are_written_and_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(atomic.fcntl, "flock", none)
    with replace_file(tmp_path / "a") as stream:
        stream.write(b"1")
        assert remove_temp(tmp_path) == []
    assert contents(tmp_path) == {"a": "1"}


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with lock_folder(folder):
        for _ in range(2):  # a refusal does not delete the empty folder
            with pytest.raises(ConfigError, match="another process is at work"), lock_folder(folder):
                pass
        (folder / "file").touch()
    with lock_folder(folder):
        assert [file.name for file in folder.iterdir()] == ["file"]
    with lock_folder(tmp_path / "empty"):
        pass
    assert not (tmp_path / "empty").exists()


def test_a_folder_appears_when_all_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()  # an empty folder is replaced
    calls = log_of_disk(monkeypatch, "rename")
    with create_folder(folder) as new:
        (new / "inner").mkdir()
        for name in NAMES:
            (new / "inner" / name).write_text("1")
        assert not list(folder.iterdir())
    assert calls == ["folder", *["file 1"] * 3, "folder", "name run", "folder"]
    assert contents(folder / "inner") == dict.fromkeys(NAMES, "1") and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, OSError])
def test_a_failed_folder_leaves_the_old_one(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "run"
    for name in NAMES:
        write_atomic(folder / name, "old")
    with pytest.raises(error), create_folder(folder) as new:
        (new / "a").write_text("new")
        if error is not OSError:  # raised because of the old files
            raise error
    assert contents(folder) == dict.fromkeys(NAMES, "old") and list(tmp_path.iterdir()) == [folder]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "text.txt").touch()
    with pytest.raises(StorageError, match=r"text.txt cannot be written \(File exists\)"), lock_folder(file):
        pass


def test_dropped_work_is_not_waited_for() -> None:
    writer, at_work, checked, gate = Writer(), threading.Event(), threading.Event(), threading.Event()

    def wanted_keys(key: object) -> bool:
        checked.set()
        return key == "b"

    writer.put("a", lambda: at_work.set() or gate.wait(2 * PATIENCE))
    assert at_work.wait(PATIENCE)
    writer.put("b", lambda: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(writer.wait, wanted_keys)
        assert checked.wait(PATIENCE)  # the lock is held until the wait
        writer.drop(lambda key: key == "b")
        until(waiting.done)
        gate.set()
    writer.close()


def test_a_new_file_keeps_no_line_if_its_folder_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "lines.jsonl")
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="cannot be written"):
        patch.setattr(json_lines, "sync", Mock(side_effect=OSError(errno.EIO, "input/output error")))
        file.append([{"n": 1}])
    assert not file.path.read_bytes() and file.count == 0
    file.append([{"n": 2}])
    assert b'"n":2' in file.path.read_bytes().replace(b" ", b"") and file.count == 1
