"""An agent's trace on disk: folders that the viewer can read, each on its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from keep_agent.agent.trace_recorder import TraceRecorder
from keep_agent.rollout.trace import Entry
from keep_agent.viewer.trace_index import TraceIndex


def step(number: int, texts: dict[str, str | None], *facts: Entry) -> Entry:
    return {"v": 1, "event": "step", "episode": "kitchen", "task": 0, "step": number, "facts": list(facts),
            "extra": {"written": list(texts.items())}, "instruction": "get the mug", "skill": "done", "ok": True,
            "message": "", "scores": []}  # fmt: skip


def mug(number: int, **more: Any) -> Entry:
    return {"id": f"mug_{number}", "category": "object", "type": "mug", **more}


def last_state(folder: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Return the texts and facts that the viewer shows at the last step."""
    episode = TraceIndex(folder / "trace.jsonl").episode("kitchen")
    last = len(episode.positions) - 1
    return dict(episode.texts.at(last)), dict(episode.facts.at(last))


def test_a_new_folder_begins_with_all_texts_and_facts(tmp_path: Path) -> None:
    record = TraceRecorder(tmp_path, "kitchen-1", "kitchen", {}, most=2500)
    record(step(0, {"mug_1": "mug mug_1\n", "mug_2": "mug mug_2\n"}, mug(1), mug(2)))
    record(step(1, {"mug_2": None, "mug_3": "mug mug_3\n"}, mug(2, gone=True), mug(3)))
    for number in range(2, 40):
        record({**step(number, {}), "event": "task"} if number % 7 == 0 else step(number, {"did": f"{number}\n"}))
    first, last = sorted(tmp_path.iterdir(), key=lambda path: int(path.suffix[1:]))  # of several folders
    assert int(first.suffix[1:]) > 1
    for folder in (first, last):
        texts, facts = last_state(folder)
        assert int(texts.pop("did")) > 30
        assert texts == {"mug_1": "mug mug_1\n", "mug_3": "mug mug_3\n"}
        assert list(facts) == ["mug_1", "mug_3"]


def test_the_folder_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = TraceRecorder(tmp_path, "kitchen-1", "kitchen", {})
    record(step(0, {}))
    monkeypatch.setattr(Path, "glob", lambda *values: pytest.fail("it was looked for again"))
    record(step(1, {}))
    assert len((tmp_path / "kitchen-1.1" / "trace.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.parametrize("lines", [0, 2])
def test_an_incomplete_line_is_cut_and_a_missing_folder_is_made_again(tmp_path: Path, lines: int) -> None:
    folder = tmp_path / "kitchen-1.1"
    TraceRecorder(tmp_path, "kitchen-1", "kitchen", {})(step(0, {}))
    file = folder / "trace.jsonl"
    file.write_bytes(file.read_bytes() + b'{"v": 1, "event": "st' if lines else b"")
    record = TraceRecorder(tmp_path, "kitchen-1", "kitchen", {})
    record(step(1, {"mug_1": "mug mug_1\n"}))
    assert last_state(folder)[0] == {"mug_1": "mug mug_1\n"}
    shutil.rmtree(folder)
    record(step(2, {}))
    assert last_state(folder)[0] == {"mug_1": "mug mug_1\n"}


def test_a_trace_of_another_agent_is_not_shown(tmp_path: Path) -> None:
    for name in ("kitchen", "hall"):
        record = TraceRecorder(tmp_path, name, name, {"agent": name})
        record(step(0, {}))
    shutil.copy(tmp_path / "hall.1" / "trace.jsonl", tmp_path / "kitchen.1")
    index = TraceIndex(tmp_path / "kitchen.1" / "trace.jsonl")
    assert not index.refresh() and "trace.jsonl:1 is damaged, " in index.problem
