"""Damage to run folders: every reader refuses committed content that has changed, and names file and line."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eval.merge import entry_spans
from keep_agent.errors import CapacityError, CorruptError, DataError, StorageError
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, RunFolder, read_config
from keep_agent.rollout.trace import read_trace
from keep_agent.viewer.trace_index import TraceIndex
from tests.keep_agent.rollout.test_frames import frames_of, on_disk
from tests.keep_agent.rollout.test_run_folder import END, result
from tests.keep_agent.viewer.traces import step
from tests.rewriting import as_of_version_0_2

Reader = Callable[[Path], object]


def entries(index: int) -> list[dict[str, Any]]:
    return [step(number, f"e{index}") for number in range(2)]


def finished(path: Path, episodes: int = 3) -> Path:
    folder = RunFolder.create(path, {"planner": {"name": "keep"}})
    for index in range(episodes):
        folder.commit(result(index), entries(index))
    folder.write_summary({"success_rate": 1.0})
    folder.release()
    return folder.path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished(tmp_path / "run")


def resumed(run: Path) -> object:
    copy = run.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    with RunFolder.resume(copy) as folder:
        return folder.results, folder.config, (copy / TRACE).read_bytes()


def viewed(run: Path) -> object:
    index = TraceIndex(run / TRACE)
    episodes = {key: [index.entry(episode, 0), len(episode.positions)] for key, episode in index.refresh().items()}
    if index.problem:
        raise CorruptError(index.problem)
    return episodes


def traced(run: Path) -> object:
    return list(read_trace(run / TRACE))


def merged(run: Path) -> object:
    return entry_spans(run / TRACE)


READERS: list[Reader] = [RunFolder.read, resumed, viewed, traced, merged]


def damaged(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents of a file of lines, with descriptions; a damaged end would look like a killed writer."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
        for place in range(len(line) - 1):
            bad = line[:place] + bytes([line[place] ^ 1 << place % 8]) + line[place + 1 :]
            yield f"a bit of byte {place} of line {number + 1}", before + bad + after
        if after:
            yield f"line {number + 1} twice", before + line + line + after
            yield f"line {number + 1} missing", before + after


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        *((EPISODES, reader) for reader in READERS),
        *((TRACE, reader) for reader in READERS[1:]),
        *((CONFIG, reader) for reader in (read_config, resumed)),
        (SUMMARY, RunFolder.read),
    ],
)
def test_every_reader_refuses_changed_content(run: Path, name: str, reader: Reader) -> None:
    whole = (run / name).read_bytes()
    reader(run)
    for damage, content in damaged(run / name):
        (run / name).write_bytes(content)
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            reader(run)
            pytest.fail(f"{damage} is not noticed")
        (run / name).write_bytes(whole)


@pytest.mark.parametrize("reader", READERS[1:])
def test_missing_last_line_of_the_trace_is_an_error(run: Path, reader: Reader) -> None:
    lines = (run / TRACE).read_bytes().splitlines(keepends=True)
    (run / TRACE).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DataError, match=r"trace\.jsonl has 5 whole lines, but 6"):
        reader(run)


def test_missing_last_episode_is_an_error(run: Path) -> None:
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    (run / EPISODES).write_bytes(b"".join(lines[:-1]))
    before = (run / TRACE).read_bytes()
    for _ in range(2):  # with and without a summary
        for use in (RunFolder.read, RunFolder.resume):
            with pytest.raises(CorruptError, match=r"lacks its last lines, 3 to 3, as episodes\.end says"):
                use(run)
            assert (run / TRACE).read_bytes() == before
        (run / SUMMARY).unlink(missing_ok=True)


@pytest.mark.parametrize("episodes", [2, 3])
@pytest.mark.parametrize(
    ("names", "readers"),
    [
        ({CONFIG}, READERS),
        ({EPISODES}, READERS),
        ({END}, READERS),
        ({EPISODES, END}, READERS),
        ({TRACE}, READERS[1:]),
        ({SUMMARY}, [RunFolder.read, resumed]),
        ({EPISODES, END, TRACE, SUMMARY}, READERS),
        ({CONFIG, TRACE, SUMMARY}, READERS),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
def test_files_of_another_run_are_refused(run: Path, names: set[str], readers: list[Reader], episodes: int) -> None:
    """Even files of a run with the same settings and results are refused."""
    foreign = finished(run.with_name("foreign"), episodes)
    for name in names:
        shutil.copy(foreign / name, run / name)
    for reader in readers:
        with pytest.raises(CorruptError, match=r"belong"):
            reader(run)


def test_refused_run_is_unlocked(run: Path) -> None:
    (run / END).unlink()
    errors = []  # their tracebacks keep references to the run
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"episodes\.end is missing") as caught:
            RunFolder.resume(run)
        errors.append(caught.value)


def test_summary_of_an_earlier_state_is_accepted_only_with_its_lines(run: Path) -> None:
    old = (run / SUMMARY).read_bytes()
    (run / SUMMARY).unlink()
    with RunFolder.resume(run) as folder:
        folder.commit(result(3), entries(3))
        folder.write_summary({"success_rate": 1.0})
    (run / SUMMARY).write_bytes(old)
    assert len(RunFolder.read(run)) == 4  # the run has continued since
    (run / EPISODES).write_bytes(b"")
    (run / END).unlink()
    with pytest.raises(CorruptError, match=r"episodes\.end is missing"):
        RunFolder.read(run)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [EPISODES, END, CONFIG])
def test_missing_file_is_an_error(run: Path, name: str, reader: Reader) -> None:
    (run / SUMMARY).unlink()
    (run / name).unlink()
    with pytest.raises(DataError, match=r"episodes|config\.json|trace\.jsonl:1"):
        reader(run)


def test_config_without_its_checksum_or_run_name_is_refused(run: Path) -> None:
    for key in ("sum", "run"):
        config = json.loads((run / CONFIG).read_text())
        del config[key]
        (run / CONFIG).write_text(json.dumps(config))
        for reader in READERS:
            with pytest.raises(CorruptError, match=r"config\.json has lost its checksum|belongs elsewhere"):
                reader(run)


def test_run_killed_at_any_write_keeps_commits_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is copied before each change of its files; a kill may leave any of these states."""
    copies: list[tuple[Path, int]] = []
    run, committed = RunFolder.create(tmp_path / "run", {}), 0

    def copying(change: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_change(*arguments: Any, **options: Any) -> Any:
            copies.append((shutil.copytree(run.path, tmp_path / f"copy{len(copies)}"), committed))
            return change(*arguments, **options)

        return copy_and_change

    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "truncate", "ftruncate"):
            patch.setattr(os, name, copying(getattr(os, name)))
        for name in ("mkdir", "rename", "replace"):
            patch.setattr(Path, name, copying(getattr(Path, name)))
        for index in range(2):
            run.commit(result(index), entries(index), frames_of(f"e{index}"))
            committed += 1
        run.write_summary({"success_rate": 1.0})
    assert len(copies) > 8
    for copy, least in copies:
        with RunFolder.resume(copy) as folder:
            number = len(folder.results)
            assert least <= number <= 2 and len(list(read_trace(copy / TRACE))) == 2 * number
            assert on_disk(copy) == {f"frames/e{e}/000{step}.png": step for e in range(number) for step in range(3)}
            assert not list(copy.rglob("*.partial"))


def test_bytes_without_a_commit_mark_are_cut_off_with_a_warning(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = (run / TRACE).read_bytes()
    for tail, size in ((b"\x00\n" * 7 + b"{", 15), (b'{"v": 1}\n{"v":1,"ev', 19)):
        (run / TRACE).write_bytes(before + tail)
        RunFolder.resume(run).release()
        assert f"the last {size} bytes were not committed and are cut off" in caplog.text
        assert (run / TRACE).read_bytes() == before


def test_run_of_an_older_version_continues_without_checksums(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    as_of_version_0_2(run)
    with RunFolder.resume(run) as folder:
        assert "was made by a version without checksums" in caplog.text
        folder.commit(result(3), entries(3))
    assert "sum" not in (run / TRACE).read_text() and len(list(read_trace(run / TRACE))) == 8
    lines = (run / TRACE).read_bytes().splitlines(keepends=True)
    (run / TRACE).write_bytes(lines[0] + b"{" + b"".join(lines[1:]))
    with pytest.raises(DataError, match=r"trace\.jsonl:2 is not JSON"):
        RunFolder.resume(run)


def test_full_disk_leaves_no_part_of_an_episode(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with RunFolder.resume(run) as folder:
        with limited(len(before[TRACE]) + 20), pytest.raises(CapacityError, match=r"no room for .*trace\.jsonl"):
            folder.commit(result(3), entries(3))
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
        folder.commit(result(3), entries(3))
    assert RunFolder.resume(run).finished == {0, 1, 2, 3}


def test_unreadable_file_is_an_error(run: Path) -> None:
    for name, reader in {EPISODES: RunFolder.read, END: RunFolder.read, TRACE: traced, CONFIG: read_config}.items():
        file = (run / name).rename(run.parent / name)
        (run / name).mkdir()
        with pytest.raises(DataError, match=rf"{name} cannot be read \(Is a directory\)"):
            reader(run)
        (run / name).rmdir()
        file.rename(run / name)


def test_read_only_file_system_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run", {})

    def deny(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(StorageError, match=r"trace\.jsonl cannot be written \(Read-only file system\)"):
        folder.commit(result(0), entries(0))


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Limit the size of files: a longer write raises EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
