"""Atomic files and folders, with and without locks, and the background writer."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keep_agent.errors import ConfigError, StorageError
from memory.files import atomic
from memory.files.atomic import alone, appearing, clean, replacing, write_atomic
from memory.files.background_writer import Writer
from tests.disk_log import log_of_disk
from tests.waiting import PATIENCE, until

NAMES = ("b", "a", "last")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_text_and_bytes_replace_a_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "new" / "a.json", "1 – “one”")
    assert contents(tmp_path / "new") == {"a.json": "1 – “one”"}
    write_atomic(tmp_path / "new" / "a.json", b"2")
    assert contents(tmp_path / "new") == {"a.json": "2"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_of_private_and_other_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for private in (False, True):
            with replacing(tmp_path / str(private), private):
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
        with pytest.raises(StorageError, match=f"{name} is a device, pipe or socket, and stays; name a file"):
            write_atomic(tmp_path / name, "1")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link"}
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_char_device()


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert contents(tmp_path) == {"a": "old"}


def test_without_locks_files_are_written_and_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(atomic.fcntl, "flock", none)
    with replacing(tmp_path / "a") as stream:
        stream.write(b"1")
        assert clean(tmp_path) == []
    assert contents(tmp_path) == {"a": "1"}


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with alone(folder):
        for _ in range(2):  # a refusal does not delete the empty folder
            with pytest.raises(ConfigError, match="another process is at work"), alone(folder):
                pass
        (folder / "file").touch()
    with alone(folder):
        assert [file.name for file in folder.iterdir()] == ["file"]


def test_an_empty_folder_is_deleted(tmp_path: Path) -> None:
    with alone(tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_when_all_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()  # an empty folder is replaced
    calls = log_of_disk(monkeypatch, "rename")
    with appearing(folder) as new:
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
    with pytest.raises(error), appearing(folder) as new:
        (new / "a").write_text("new")
        if error is not OSError:  # raised because of the old files
            raise error
    assert contents(folder) == dict.fromkeys(NAMES, "old") and list(tmp_path.iterdir()) == [folder]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "text.txt").touch()
    with pytest.raises(StorageError, match=r"text.txt cannot be written \(File exists\)"), alone(file):
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
