"""Index of a trace, compared with its lines, for files that grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.viewer_trace import Size, entries
from keep_agent.errors import DataError
from keep_agent.rollout.trace import read_trace
from keep_agent.viewer.trace_index import TraceIndex
from tests.keep_agent.viewer.traces import append, crash, end, history_of, opening, prompt, step, write

TRACE = "trace.jsonl"
LINES = [json.dumps(entry).encode() + b"\n" for entry in entries(Size(steps=12, layers=3, segments=4))]
LINES += [json.dumps(entry).encode() + b"\n" for entry in (opening("é"), step(0, "é", message="ü"), end(False, 0, "é"))]
WHOLE = b"".join(LINES)


def read(index: TraceIndex) -> dict[str, list[Any]]:
    episodes = index.refresh().items()
    return {key: [index.entry(episode, step) for step in range(len(episode.positions))] for key, episode in episodes}


def by_line(path: Path) -> dict[str, list[Any]]:
    episodes: dict[str, list[Any]] = {}
    for entry in read_trace(path):
        steps = episodes.setdefault(entry["episode"], [])
        if entry["event"] == "step":
            steps.append(entry)
    return episodes


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_file_that_grows_in_parts_is_read_whole(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("grows") / TRACE
    index, at = TraceIndex(path), 0
    for cut in [*sorted(cuts), len(WHOLE)]:
        with path.open("ab") as stream:
            stream.write(WHOLE[at:cut])
        at = cut
        complete = WHOLE[:cut].count(b"\n")
        assert sum(len(steps) for steps in read(index).values()) == sum(b'"step"' in line for line in LINES[:complete])
    assert read(index) == by_line(path) and not index.problem


def test_appended_bytes_are_read_once(synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = TraceIndex(synthetic / TRACE)
    index.refresh()
    numbers: list[int] = []
    monkeypatch.setattr(index, "_add_entry", lambda place, entry: numbers.append(place.number))
    index.refresh()
    assert numbers == []
    append(synthetic, step(99, "long-1"))
    index.refresh()
    assert len(numbers) == 1


def test_replaced_or_shorter_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    run = write(tmp_path, [opening(), step(), step(1)])
    index = TraceIndex(run / TRACE)
    assert len(index.episode("e").positions) == 2
    write(tmp_path, [opening(), step()])
    assert len(index.episode("e").positions) == 1
    replacement = write(tmp_path / "replacement", [opening("f"), step(0, "f"), step(1, "f"), step(2, "f")])
    (replacement / TRACE).replace(run / TRACE)
    assert {key: len(steps) for key, steps in read(index).items()} == {"f": 3}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{torn", r"trace.jsonl:3 is not JSON .*run it again"),
        ("[1, 2]", "trace.jsonl:3 is not a JSON object"),
        ("7", "trace.jsonl:3 is not a JSON object"),
        (json.dumps(step() | {"v": 9}), "trace.jsonl:3 has schema 9, this version reads 1"),
        (json.dumps({"v": 1, "event": "step"}), "trace.jsonl:3 is not an entry of a trace .*episode"),
        (json.dumps(step() | {"step": None}), "trace.jsonl:3 is not an entry"),
        (json.dumps(step(facts=[{"category": "object"}])), "trace.jsonl:3 is not an entry"),
        (json.dumps(step(goal=[1])), "trace.jsonl:3 is not an entry"),
        (json.dumps(step(timings={"ttft": float("nan")})), "trace.jsonl:3 is not an entry .*nan is not finite"),
        (json.dumps(step(timings={"ttft": 10**400})), "trace.jsonl:3 is not an entry .*OverflowError"),
        (json.dumps(step(goal=[0, float("inf")])), "trace.jsonl:3 is not an entry .*OverflowError"),
        (json.dumps(step(**prompt() | {"active_rows": [float("inf")] * 2})), "trace.jsonl:3 .*inf is not finite"),
        (json.dumps(step(timings={"ttft": 1.0})).replace("1.0", "1e999"), "trace.jsonl:3 is not an entry .*inf is not"),
        (json.dumps(opening("f", tasks="put")), "trace.jsonl:3 is not an entry .*must be a list of mappings"),
        (json.dumps(opening("f", tasks=[1])), "trace.jsonl:3 is not an entry"),
        (json.dumps(end(True) | {"met": None}), "trace.jsonl:3 is not an entry"),
        (json.dumps(end(True) | {"total": "all"}), "trace.jsonl:3 is not an entry"),
        ("\udcff", "trace.jsonl:3 is not UTF-8 text"),
    ],
)
def test_reading_stops_at_an_invalid_line(line: str, text: str, tmp_path: Path) -> None:
    run = write(tmp_path, [opening(), step()])
    append(run, line.encode("utf-8", "surrogateescape") + b"\n", step(2))
    index = TraceIndex(run / TRACE)
    assert len(index.refresh()["e"].positions) == 1, "lines before it are kept"
    with pytest.raises(DataError, match=text):
        raise DataError(index.problem)
    index.refresh()
    assert len(index.episode("e").positions) == 1, "lines after it are ignored"


def test_missing_file_has_no_episodes(tmp_path: Path) -> None:
    index = TraceIndex(tmp_path / TRACE)
    assert index.refresh() == {}
    write(tmp_path, [opening()])
    assert list(index.refresh()) == ["e"]


def test_repeated_episode_has_a_key_of_its_own(tmp_path: Path) -> None:
    index = TraceIndex(write(tmp_path, [opening(), step(), crash(), opening(), step(), step(1)]) / TRACE)
    episodes = index.refresh()
    assert {key: len(episode.positions) for key, episode in episodes.items()} == {"e": 1, "e#2": 2}
    assert episodes["e"].crash is not None
    assert (episodes["e#2"].crash, episodes["e#2"].id) == (None, "e")


def test_steps_without_an_opening_are_an_episode(tmp_path: Path) -> None:
    index = TraceIndex(write(tmp_path, [step(5, "late", instruction="Now.")]) / TRACE)
    assert index.episode("late").instruction == "Now."


CHANGES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.none() | st.text(max_size=2)), max_size=30)


def replayed(changes: list[tuple[int, str, str | None]], last: int) -> dict[str, str]:
    state = {id: value for since, id, value in changes if since <= last}
    return {id: value for id, value in state.items() if value is not None}


@given(changes=CHANGES)
def test_history_equals_a_replay_of_its_changes(changes: list[tuple[int, str, str | None]]) -> None:
    changes.sort(key=lambda change: change[0])
    history = history_of(*changes)
    for number in range(-1, 11):
        assert dict(history.at(number)) == replayed(changes, number)


def test_versions_are_the_texts_up_to_a_step() -> None:
    history = history_of((0, "a", "one"), (1, "a", None), (2, "a", "two"))
    assert history.versions(1, "a") == [(0, "one")] and history.versions(2, "a") == [(0, "one"), (2, "two")]
    assert history.versions(2, "b") == []
