"""Recording and replay of the fake simulator's answers."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import ReplayMismatch, SimulatorAnswer, SimulatorGone
from envs.wah.virtualhome.recording import Recording, Replay, first_difference
from keep_agent.errors import CapacityError, ConfigError, DataError
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.envs.wah.virtualhome.toy import LINE, NOTHING_LEFT_OPEN, connected, http

pytestmark = NOTHING_LEFT_OPEN


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talk.jsonl"


def converse(simulator: Simulator) -> list[Any]:
    simulator.reset(1)
    simulator.add_character()
    return [simulator.environment_graph(), simulator.render_script([LINE]), simulator.camera_count()]


@pytest.mark.parametrize("name", ["talk.jsonl", "deep/er/talk.jsonl.gz"])
def test_a_replay_is_identical(server: FakeSimulator, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with connected(http(server), record=path) as simulator:
        answers = converse(simulator)
        assert not path.exists()
    server.kill()
    second = path.with_name(f"second-{path.name}")
    with connected(Replay(path), record=second) as simulator:
        assert converse(simulator) == answers
    assert second.read_bytes() == path.read_bytes()
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([path.name, second.name])


@pytest.fixture
def recorded(server: FakeSimulator, path: Path) -> Path:
    with connected(http(server), record=path) as simulator:
        converse(simulator)
    return path


def test_a_different_request_is_a_mismatch(recorded: Path) -> None:
    with connected(Replay(recorded)) as simulator:
        with pytest.raises(ReplayMismatch, match=r"intParams\[0\] was 1, is 0"):
            simulator.reset(0)
        with pytest.raises(ReplayMismatch, match=r"action was 'reset', is 'idle'"):
            simulator.check()
        simulator.reset(1)
        with pytest.raises(ReplayMismatch, match=r"add_character at recording .*line 2: stringParams\[0\] was .*fix_r"):
            simulator.add_character("kitchen")


def test_a_request_after_the_end_is_a_mismatch(recorded: Path) -> None:
    with connected(Replay(recorded)) as simulator:
        converse(simulator)
        for _ in range(2):
            with pytest.raises(ReplayMismatch, match=r"idle at recording .*talk.jsonl: the recording is at its end"):
                simulator.check()


def test_a_recorded_refusal_is_replayed(server: FakeSimulator, path: Path) -> None:
    with connected(http(server), record=path) as simulator, pytest.raises(SimulatorAnswer, match="Invalid scene"):
        simulator.reset(9)
    with connected(Replay(path)) as simulator, pytest.raises(SimulatorAnswer, match="at recording .*Invalid scene"):
        simulator.reset(9)


def test_ids_are_not_compared(path: Path) -> None:
    line = {"request": {"id": "7", "action": "idle"}, "answer": {"id": "8", "success": True}}
    path.write_text(json.dumps(line) + '\n{"end": 1}\n')
    with connected(Replay(path)) as simulator:
        simulator.check()


@pytest.mark.parametrize(("count", "words"), [*((n, f"{n + 1} is damaged") for n in range(6)), (12, "6 is neither")])
def test_recordings_cut_between_lines_or_continued_after_the_end_are_errors(
    recorded: Path, count: int, words: str
) -> None:
    lines = recorded.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    recorded.write_text("".join([*lines, *lines][:count]))
    with connected(Replay(recorded)) as simulator, pytest.raises(DataError, match=f"talk.jsonl:{words}"):
        converse(simulator)
        simulator.check()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", '{"end": 3}', '{"request": {}, "answer": 1}', '{"request": {}}', "\x00", "[" * 9999],
)
def test_damaged_lines_are_errors(recorded: Path, line: str) -> None:
    lines = recorded.read_text().splitlines()
    recorded.write_text("\n".join([lines[0], line, *lines[2:]]))
    with connected(Replay(recorded)) as simulator, pytest.raises(DataError, match="talk.jsonl:2 is"):
        converse(simulator)


def test_damaged_archives_are_errors(server: FakeSimulator, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl.gz"
    with connected(http(server), record=path) as simulator:
        converse(simulator)
    intact = path.read_bytes()
    flipped = intact[:40] + bytes([intact[40] ^ 255]) + intact[41:]
    for damaged in (b"", b"no gzip", intact[: len(intact) // 2], intact[:-9], flipped):
        path.write_bytes(damaged)
        with connected(Replay(path)) as simulator, pytest.raises(DataError, match=r"talk.jsonl.gz:\d+ is"):
            converse(simulator)
            simulator.check()
    assert gzip.decompress(intact).count(b"\n") == 6


def test_a_missing_recording_is_an_error(path: Path) -> None:
    for place, message in ((path, "does not exist"), (path.parent, "cannot be read")):
        with pytest.raises(DataError, match=message):
            Replay(place)


def test_no_file_is_overwritten(server: FakeSimulator, tmp_path: Path, path: Path) -> None:
    path.write_text("old")
    for taken_path in (path, tmp_path):
        with pytest.raises(ConfigError, match="already exists; record to another file"):
            Recording(http(server), taken_path)
    with pytest.raises(ConfigError, match="cannot be recorded to"):
        Simulator(http(server), record=path / "talk.jsonl")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_without_exchanges_there_is_no_file(server: FakeSimulator, path: Path) -> None:
    Simulator(http(server), record=path).close()
    server.kill()
    with pytest.raises(SimulatorGone), connected(http(server), record=path) as simulator:
        simulator.check()
    assert not list(path.parent.iterdir())


def test_a_recording_closes_once(server: FakeSimulator, path: Path) -> None:
    simulator = Simulator(http(server), record=path)
    simulator.check()
    for _ in range(2):
        simulator.close()
        assert [json.loads(line) for line in path.read_text().splitlines()][-1] == {"end": 1}


def test_a_failed_request_is_not_recorded_and_fails_in_the_replay_which_continues(
    server: FakeSimulator, path: Path
) -> None:
    with connected(http(server), record=path) as simulator:
        first = simulator.environment_graph()
        server.faults.append("bad_json")
        with pytest.raises(SimulatorAnswer):
            simulator.render_script([LINE])
        simulator.reset(1)
        last = simulator.environment_graph()
    with connected(Replay(path)) as simulator:
        assert simulator.environment_graph() == first
        with pytest.raises(ReplayMismatch):
            simulator.render_script([LINE])
        simulator.reset(1)
        assert simulator.environment_graph() == last


@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_a_full_disk(server: FakeSimulator, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(CapacityError, match="free some room"),
        connected(http(server), record=tmp_path / name) as simulator,
    ):
        simulator.check()
    assert not list(tmp_path.iterdir())
    requests = len(server.requests)
    with pytest.raises(CapacityError, match="free some room"):
        simulator.check()
    assert len(server.requests) == requests, "requests that cannot be recorded are not sent"


def test_a_file_that_cannot_be_renamed_is_preserved(
    server: FakeSimulator, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(CapacityError, match="renamed by hand"):
        patch.setattr(os, "link", full)
        patch.setattr(Path, "replace", full)
        with connected(http(server), record=path) as simulator:
            simulator.check()
    (partial_file,) = path.parent.iterdir()
    with connected(Replay(partial_file)) as simulator:
        simulator.check()


@pytest.mark.parametrize("links", [True, False])
def test_two_recordings_to_one_path_are_both_preserved(
    server: FakeSimulator, path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds on a file system without links, unless both recordings end at the same time."""
    if not links:
        monkeypatch.setattr(os, "link", full)
    first, second = (Simulator(http(server), record=path) for _ in range(2))
    first.check()
    second.environment_graph()
    first.close()
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="was recorded by another process"):
        second.close()
    (partial_file,) = path.parent.glob(".talk*")
    assert path.read_bytes() == content != partial_file.read_bytes() and b'"end":1' in partial_file.read_bytes()


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("recorded", "current", "difference"),
    [
        ({"a": [1, "x"]}, {"a": [1, "x"]}, None),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, "a[1] was 'x', is 'y'"),
        ({"a": []}, {"a": {}}, "a was [], is {}"), ({"a": 1}, {"b": 1}, "a was 1, is not there"),
        ({"a": "x" * 99 + "y"}, {"a": "x" * 100}, f"a was ...{'x' * 40 + 'y'!r}, is ...{'x' * 41!r}"),
        ({"a": 1}, {"a": 1, "b": "z" * 99}, f"b was not there, is {'z' * 80!r}..."),
        ({"a.b": 1}, {"a": {"b": 1}}, "the same values are nested differently"),
    ],
)  # fmt: skip
def test_differences(recorded: Any, current: Any, difference: str | None) -> None:
    assert first_difference(recorded, current) == difference
