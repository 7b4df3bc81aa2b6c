"""Damage to run folders: every reader refuses what has changed since it was committed, and names file and line."""

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

from eval.merge import spans
from keep_agent.errors import CapacityError, CorruptError, DataError, StorageError
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, RunFolder, read_config
from keep_agent.rollout.trace import read_trace
from keep_agent.viewer.trace_index import TraceIndex
from tests.keep_agent.rollout.test_run_folder import result
from tests.keep_agent.viewer.traces import step
from tests.rewriting import as_of_version_0_2

END = "episodes.end"
Reader = Callable[[Path], object]


def entries(index: int) -> list[dict[str, Any]]:
    return [step(number, f"e{index}") for number in range(2)]


def finished(path: Path, episodes: int = 3) -> Path:
    """A finished run."""
    folder = RunFolder.create(path, {"planner": {"name": "keep"}})
    for index in range(episodes):
        folder.commit(result(index), entries(index))
    folder.write_summary({"success_rate": 1.0})
    folder.release()
    return folder.path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of three episodes."""
    return finished(tmp_path / "run")


def resumed(run: Path) -> object:
    copy = run.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    again = RunFolder.resume(copy)
    again.release()
    return again.results, again.config, (copy / TRACE).read_bytes()


def viewed(run: Path) -> object:
    index = TraceIndex(run / TRACE)
    found = {key: [index.entry(one, 0), len(one.places)] for key, one in index.refresh().items()}
    if index.problem:
        raise CorruptError(index.problem)
    return found


def traced(run: Path) -> object:
    return list(read_trace(run / TRACE))


def merged(run: Path) -> object:
    return spans(run / TRACE)


def damaged(path: Path) -> Iterator[tuple[str, bytes]]:
    """A file of lines with each kind of damage, but for more or less at its end: so killed writers leave files."""
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
        *((EPISODES, reader) for reader in (RunFolder.read, resumed, viewed, traced, merged)),
        *((TRACE, reader) for reader in (resumed, viewed, traced, merged)),
        *((CONFIG, reader) for reader in (read_config, resumed)),
        (SUMMARY, RunFolder.read),
    ],
)
def test_every_reader_refuses_what_has_changed(run: Path, name: str, reader: Reader) -> None:
    whole = (run / name).read_bytes()
    reader(run)
    for what, content in damaged(run / name):
        (run / name).write_bytes(content)
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            reader(run)
            pytest.fail(f"{what} is not noticed")
        (run / name).write_bytes(whole)


@pytest.mark.parametrize("reader", [resumed, viewed, traced, merged])
def test_committed_lines_that_are_missing_at_the_end_are_noticed(run: Path, reader: Reader) -> None:
    lines = (run / TRACE).read_bytes().splitlines(keepends=True)
    (run / TRACE).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DataError, match=r"trace\.jsonl has 5 whole lines of the 6"):
        reader(run)


def test_a_finished_run_that_lacks_an_episode_is_refused(run: Path) -> None:
    lines = (run / EPISODES).read_bytes().splitlines(keepends=True)
    (run / EPISODES).write_bytes(b"".join(lines[:-1]))
    for _ in range(2):  # with its summary, and as one that is not finished
        with pytest.raises(CorruptError, match=r"lacks its last lines, 3 to 3, as episodes\.end says"):
            RunFolder.read(run)
        before = (run / TRACE).read_bytes()
        with pytest.raises(CorruptError, match=r"lacks its last lines, 3 to 3, as episodes\.end says"):
            RunFolder.resume(run)
        assert (run / TRACE).read_bytes() == before
        (run / SUMMARY).unlink(missing_ok=True)


@pytest.mark.parametrize("episodes", [2, 3])
@pytest.mark.parametrize(
    ("names", "readers"),
    [
        ({CONFIG}, [RunFolder.read, resumed, viewed, traced, merged]),
        ({EPISODES}, [RunFolder.read, resumed, viewed, traced, merged]),
        ({END}, [RunFolder.read, resumed, viewed, traced, merged]),
        ({EPISODES, END}, [RunFolder.read, resumed, viewed, traced, merged]),
        ({TRACE}, [resumed, viewed, traced, merged]),
        ({SUMMARY}, [RunFolder.read, resumed]),
        ({EPISODES, END, TRACE, SUMMARY}, [RunFolder.read, resumed, viewed, traced, merged]),
        ({CONFIG, TRACE, SUMMARY}, [RunFolder.read, resumed, viewed, traced, merged]),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
def test_files_of_another_run_are_refused(run: Path, names: set[str], readers: list[Reader], episodes: int) -> None:
    """Also of one with the same settings and results."""
    other = finished(run.with_name("other"), episodes)
    for name in names:
        shutil.copy(other / name, run / name)
    for reader in readers:
        with pytest.raises(CorruptError, match=r"belong"):
            reader(run)


def test_a_run_that_is_refused_is_let_go_of(run: Path) -> None:
    (run / END).unlink()
    errors = []  # which hold what they passed through
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"episodes\.end is missing") as found:
            RunFolder.resume(run)
        errors.append(found.value)


def test_a_summary_of_an_earlier_state_is_refused(run: Path) -> None:
    old = (run / SUMMARY).read_bytes()
    (run / SUMMARY).unlink()
    again = RunFolder.resume(run)
    again.commit(result(3), entries(3))
    again.write_summary({"success_rate": 1.0})
    again.release()
    (run / SUMMARY).write_bytes(old)
    assert len(RunFolder.read(run)) == 4  # it tells of a run that has gone on since
    (run / EPISODES).write_bytes(b"")
    (run / END).unlink()
    with pytest.raises(CorruptError, match=r"episodes\.end is missing"):
        RunFolder.read(run)


@pytest.mark.parametrize("reader", [RunFolder.read, resumed, viewed, traced, merged])
@pytest.mark.parametrize("names", [{EPISODES}, {END}, {CONFIG}])
def test_missing_files_are_noticed(run: Path, names: set[str], reader: Reader) -> None:
    (run / SUMMARY).unlink()
    for name in names:
        (run / name).unlink()
    with pytest.raises(DataError, match=r"episodes|config\.json|trace\.jsonl:1"):
        reader(run)


def test_a_config_without_its_checksum_is_refused(run: Path) -> None:
    """Whether the name of the run is left in it or not."""
    for key in ("sum", "run"):
        config = json.loads((run / CONFIG).read_text())
        del config[key]
        (run / CONFIG).write_text(json.dumps(config))
        for reader in (RunFolder.read, resumed, viewed, traced, merged):
            with pytest.raises(CorruptError, match=r"config\.json has lost its checksum|belongs elsewhere"):
                reader(run)


def test_killed_at_any_write_a_run_goes_on_with_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is taken before and after each change of the folder's files: any of them is what a kill may leave."""
    copies: list[tuple[Path, int]] = []
    run = RunFolder.create(tmp_path / "run", {})
    committed = 0

    def noted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **more: Any) -> Any:
            copies.append((shutil.copytree(run.path, tmp_path / f"copy{len(copies)}"), committed))
            return change(*given, **more)

        return changed

    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "truncate", "ftruncate"):
            patch.setattr(os, name, noted(getattr(os, name)))
        patch.setattr(Path, "replace", noted(Path.replace))
        for index in range(2):
            run.commit(result(index), entries(index))
            committed += 1
        run.write_summary({"success_rate": 1.0})
    assert len(copies) > 8
    for copy, least in copies:
        again = RunFolder.resume(copy)
        again.release()
        assert least <= len(again.results) <= 2
        assert len(list(read_trace(copy / TRACE))) == 2 * len(again.results)


def test_what_is_cut_off_is_reported(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (run / TRACE).open("ab") as stream:
        stream.write(b"\x00\n" * 7 + b"{")
    RunFolder.resume(run).release()
    assert "15 bytes without a commit mark are cut off" in caplog.text


def test_a_run_without_checksums_goes_on_without_and_says_so(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    as_of_version_0_2(run)
    again = RunFolder.resume(run)
    assert "was made by a version without checksums" in caplog.text
    again.commit(result(3), entries(3))
    again.release()
    assert "sum" not in (run / TRACE).read_text()
    assert len(list(read_trace(run / TRACE))) == 8
    lines = (run / TRACE).read_bytes().splitlines(keepends=True)
    (run / TRACE).write_bytes(lines[0] + b"{" + b"".join(lines[1:]))
    with pytest.raises(DataError, match=r"trace\.jsonl:2 is not JSON"):
        RunFolder.resume(run)


def test_a_full_disk_leaves_no_half_of_an_episode(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    again = RunFolder.resume(run)
    with limited(len(before[TRACE]) + 20), pytest.raises(CapacityError, match=r"no room for .*trace\.jsonl"):
        again.commit(result(3), entries(3))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    again.commit(result(3), entries(3))
    again.release()
    assert RunFolder.resume(run).finished == {0, 1, 2, 3}


def test_a_file_that_may_not_be_read_is_named(run: Path) -> None:
    for name, reader in {EPISODES: RunFolder.read, END: RunFolder.read, TRACE: traced, CONFIG: read_config}.items():
        file = (run / name).rename(run.parent / name)
        (run / name).mkdir()
        with pytest.raises(DataError, match=rf"{name} cannot be read \(Is a directory\)"):
            reader(run)
        (run / name).rmdir()
        file.rename(run / name)


def test_a_place_where_nothing_may_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run", {})

    def denied(*given: object, **more: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(StorageError, match=r"trace\.jsonl cannot be written \(Read-only file system\)"):
        folder.commit(result(0), entries(0))


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file may become longer: writing beyond raises EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
