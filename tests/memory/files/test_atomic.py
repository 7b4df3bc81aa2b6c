"""Atomic files and folders: whole or not at all, also where the file system has no locks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from keep_agent.errors import CapacityError, ConfigError, StorageError
from memory.files import atomic
from memory.files.atomic import alone, appearing, clean, replacing, write_atomic
from tests.disk_log import log_of_disk

NAMES = ("b", "a", "last")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_words_and_bytes_replace_what_was_there_and_leave_nothing_beside(tmp_path: Path) -> None:
    write_atomic(tmp_path / "new" / "a.json", "1 – “one”")
    assert contents(tmp_path / "new") == {"a.json": "1 – “one”"}
    write_atomic(tmp_path / "new" / "a.json", b"2")
    assert contents(tmp_path / "new") == {"a.json": "2"}


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_private_files_are_their_users_and_others_what_the_umask_lets(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for private in (False, True):
            with replacing(tmp_path / str(private), private):
                pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"False": 0o666 & ~mask, "True": 0o600}


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = log_of_disk(monkeypatch, "replace")
    write_atomic(tmp_path / "a", "1")
    assert calls == ["file 1", "name a", "folder"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "a", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        with pytest.raises(CapacityError, match=r"no room for .*a \(No space left"):
            write_atomic(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a": "old"}


def test_a_pipe_or_device_stays_what_it_is(tmp_path: Path) -> None:
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


def test_two_do_not_work_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with alone(folder):
        for _ in range(2):  # who is refused leaves the folder alone, though nothing is in it yet
            with pytest.raises(ConfigError, match="another process is at work"), alone(folder):
                pass
        (folder / "file").touch()
    with alone(folder):
        assert [file.name for file in folder.iterdir()] == ["file"]


def test_a_folder_in_which_nothing_was_done_goes(tmp_path: Path) -> None:
    with alone(tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_when_all_of_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()  # an empty one gives way
    calls = log_of_disk(monkeypatch, "rename")
    with appearing(folder) as new:
        (new / "inner").mkdir()
        for name in NAMES:
            (new / "inner" / name).write_text("1")
        assert not list(folder.iterdir())
    assert calls == ["folder", *["file 1"] * 3, "folder", "name run", "folder"]
    assert contents(folder / "inner") == dict.fromkeys(NAMES, "1") and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, OSError])
def test_a_folder_that_cannot_appear_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "run"
    for name in NAMES:
        write_atomic(folder / name, "old")
    with pytest.raises(error), appearing(folder) as new:
        (new / "a").write_text("new")
        if error is not OSError:  # which comes of the old files
            raise error
    assert contents(folder) == dict.fromkeys(NAMES, "old") and list(tmp_path.iterdir()) == [folder]


def test_a_file_is_no_folder_to_work_in(tmp_path: Path) -> None:
    (file := tmp_path / "text.txt").touch()
    with pytest.raises(StorageError, match=r"text.txt cannot be written \(File exists\)"), alone(file):
        pass
