"""Conversations with the stand-in, written down and replayed."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.difference import first_difference
from envs.wah.virtualhome.errors import (
    ReplayMismatch,
    SimulatorAnswer,
    SimulatorGone,
)
from envs.wah.virtualhome.recording import Recording, Replay
from keep_agent.errors import CapacityError, ConfigError, DataError
from tests.envs.wah.standin import StandIn
from tests.envs.wah.virtualhome.toy import LINE, NOTHING_LEFT_OPEN, http

pytestmark = NOTHING_LEFT_OPEN


def converse(simulator: Simulator) -> list[Any]:
    simulator.reset(1)
    simulator.add_character()
    return [simulator.environment_graph(), simulator.render_script([LINE]), simulator.camera_image([0])]


@pytest.mark.parametrize("name", ["talk.jsonl", "deep/er/talk.jsonl.gz"])
def test_a_replay_is_identical(standin: StandIn, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Simulator(http(standin), record=path) as simulator:
        said = converse(simulator)
        assert not path.exists()
    standin.kill()
    again = path.with_name(f"again-{path.name}")
    with Simulator(Replay(path), record=again) as simulator:
        assert converse(simulator) == said
    assert again.read_bytes() == path.read_bytes()
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([path.name, again.name])


@pytest.fixture
def recorded(standin: StandIn, tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    with Simulator(http(standin), record=path) as simulator:
        converse(simulator)
    return path


def test_a_replay_that_departs(recorded: Path) -> None:
    with Simulator(Replay(recorded)) as simulator:
        simulator.reset(1)
        with pytest.raises(ReplayMismatch, match=r"add_character at recording .*line 2: stringParams\[0\] was .*Fem"):
            simulator.add_character("Chars/Male2")
    with (
        Simulator(Replay(recorded)) as simulator,
        pytest.raises(ReplayMismatch, match=r"intParams\[0\] was 1, is 0"),
    ):
        simulator.reset(0)
    with (
        Simulator(Replay(recorded)) as simulator,
        pytest.raises(ReplayMismatch, match=r"action was 'reset', is 'idle'"),
    ):
        simulator.check()


def test_a_replay_at_its_end(recorded: Path) -> None:
    with Simulator(Replay(recorded)) as simulator:
        converse(simulator)
        for _ in range(2):
            with pytest.raises(ReplayMismatch, match=r"idle at recording .*talk.jsonl: the recording is at its end"):
                simulator.check()


def test_a_recorded_refusal_is_one_again(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with Simulator(http(standin), record=path) as simulator, pytest.raises(SimulatorAnswer, match="Invalid scene"):
        simulator.reset(9)
    with Simulator(Replay(path)) as simulator, pytest.raises(SimulatorAnswer, match="at recording .*Invalid scene"):
        simulator.reset(9)


def test_ids_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    line = {"request": {"id": "7", "action": "idle"}, "answer": {"id": "8", "success": True}}
    path.write_text(json.dumps(line) + '\n{"end": 1}\n')
    with Simulator(Replay(path)) as simulator:
        simulator.check()


def test_a_recording_that_goes_on_after_its_end(recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes() * 2)
    with Simulator(Replay(recorded)) as simulator:
        converse(simulator)
        with pytest.raises(DataError, match="talk.jsonl:6 is"):
            simulator.check()


@pytest.mark.parametrize("kept", range(6))
def test_recordings_cut_between_lines(recorded: Path, kept: int) -> None:
    lines = recorded.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    recorded.write_text("".join(lines[:kept]))
    with Simulator(Replay(recorded)) as simulator, pytest.raises(DataError, match=rf"talk.jsonl:{kept + 1} is damaged"):
        converse(simulator)
        simulator.check()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", '{"end": 3}', '{"request": {}, "answer": 1}', '{"request": {}}', "\x00", "[" * 9999],
)
def test_damaged_lines(recorded: Path, line: str) -> None:
    lines = recorded.read_text().splitlines()
    recorded.write_text("\n".join([lines[0], line, *lines[2:]]))
    with Simulator(Replay(recorded)) as simulator, pytest.raises(DataError, match="talk.jsonl:2 is"):
        converse(simulator)


def test_damaged_archives(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl.gz"
    with Simulator(http(standin), record=path) as simulator:
        converse(simulator)
    sound = path.read_bytes()
    flipped = sound[:40] + bytes([sound[40] ^ 255]) + sound[41:]
    for damaged in (b"", b"no gzip", sound[: len(sound) // 2], sound[:-9], flipped):
        path.write_bytes(damaged)
        with Simulator(Replay(path)) as simulator, pytest.raises(DataError, match=r"talk.jsonl.gz:\d+ is"):
            converse(simulator)
            simulator.check()
    assert gzip.decompress(sound).count(b"\n") == 6


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Replay(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        Replay(tmp_path)


def test_nothing_is_written_over(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("old")
    for there in (path, tmp_path):
        with pytest.raises(ConfigError, match="is there already; record in another file"):
            Recording(http(standin), there)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_where_nothing_was_said_there_is_no_file(standin: StandIn, tmp_path: Path) -> None:
    Simulator(http(standin), record=tmp_path / "talk.jsonl").close()
    standin.kill()
    with pytest.raises(SimulatorGone), Simulator(http(standin), record=tmp_path / "talk.jsonl") as simulator:
        simulator.check()
    assert not list(tmp_path.iterdir())


def test_a_recording_closes_once(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    simulator = Simulator(http(standin), record=path)
    simulator.check()
    for _ in range(2):
        simulator.close()
        assert [json.loads(line) for line in path.read_text().splitlines()][-1] == {"end": 1}


def test_what_failed_fails_again_and_the_talk_goes_on(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with Simulator(http(standin), record=path) as simulator:
        first = simulator.environment_graph()
        standin.faults.append("bad_json")
        with pytest.raises(SimulatorAnswer):
            simulator.render_script([LINE])
        simulator.reset(1)
        last = simulator.environment_graph()
    with Simulator(Replay(path)) as simulator:
        assert simulator.environment_graph() == first
        with pytest.raises(ReplayMismatch):
            simulator.render_script([LINE])
        simulator.reset(1)
        assert simulator.environment_graph() == last


def test_calls_that_fail_are_not_recorded(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with pytest.raises(SimulatorAnswer), Simulator(http(standin), record=path) as simulator:
        simulator.check()
        standin.faults.append("bad_json")
        simulator.check()
    assert path.read_text().splitlines()[1:] == ['{"end":1}']


def test_a_place_that_cannot_be_written(standin: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot|can be recorded"):
        Simulator(http(standin), record=tmp_path / "file" / "talk.jsonl")


@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_a_full_disk(standin: StandIn, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(http(standin), record=tmp_path / name)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CapacityError, match="free some room"), simulator:
        simulator.check()
    assert not list(tmp_path.iterdir())
    asked = len(standin.seen)
    with pytest.raises(CapacityError, match="free some room"):
        simulator.check()
    assert len(standin.seen) == asked, "what cannot be written down is not asked"


def test_a_file_that_cannot_be_renamed_is_kept(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(CapacityError, match="renamed by hand"):
        patch.setattr(os, "link", full)
        patch.setattr(Path, "replace", full)
        with Simulator(http(standin), record=tmp_path / "talk.jsonl") as simulator:
            simulator.check()
    (kept,) = tmp_path.iterdir()
    with Simulator(Replay(kept)) as simulator:
        simulator.check()


@pytest.mark.parametrize("links", [True, False])
def test_two_that_record_in_one_file_keep_both(
    standin: StandIn, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of a run on one disk; also where the file system has no links, as long as they do not end at once."""
    path = tmp_path / "talk.jsonl"
    if not links:
        monkeypatch.setattr(os, "link", full)
    first, second = (Simulator(http(standin), record=path) for _ in range(2))
    first.check()
    second.environment_graph()
    first.close()
    said = path.read_bytes()
    with pytest.raises(ConfigError, match="was recorded by another meanwhile"):
        second.close()
    (other,) = tmp_path.glob(".talk*")
    assert path.read_bytes() == said != other.read_bytes() and b'"end":1' in other.read_bytes()


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_differences() -> None:
    assert first_difference({"a": [1, "x"]}, {"a": [1, "x"]}) is None
    assert first_difference({"a": [1, "x"]}, {"a": [1, "y"]}) == "a[1] was 'x', is 'y'"
    assert first_difference({"a": []}, {"a": {}}) == "a was [], is {}"
    assert first_difference({"a": 1}, {"b": 1}) == "a was 1, is not there"
    assert (
        first_difference({"a": "x" * 99 + "y"}, {"a": "x" * 100}) == f"a was ...{'x' * 40 + 'y'!r}, is ...{'x' * 41!r}"
    )
    assert first_difference({"a": 1}, {"a": 1, "b": "z" * 99}) == f"b was not there, is {'z' * 80!r}..."
    assert first_difference({"a.b": 1}, {"a": {"b": 1}}) == "the same values are nested otherwise"
