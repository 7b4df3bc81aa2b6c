"""Anatomy of a run: changes by kind and sums by layer, for a small trace and for a run with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval import alfred, anatomy
from keep_agent.errors import DataError
from keep_agent.rollout.trace import read_trace
from tests.eval.workers.runs import Command, assert_refused


def step(episode: str, edits: list[tuple[str, str | None]], **more: Any) -> dict[str, Any]:
    names = [name for name, _ in edits if not name.startswith(("did", "task"))]
    kinds = ["object" if name.startswith("mug") else "receptacle" for name in names]
    facts = [{"id": name.split("/")[0], "category": kind} for name, kind in zip(names, kinds, strict=True)]
    usual = {"token_ids": [0] * 10, "active_rows": [10, 4], "loads": [[0, 2, 0.0, 1.0, 600]]}
    return {"event": "step", "episode": episode, "facts": facts, "extra": {"written": edits}, **usual, **more}


def test_only_changes_of_existing_segments_count() -> None:
    entries = [
        {"event": "episode", "episode": "a"},
        step("a", [("desk_1", "desk"), ("mug_1", "mug desk"), ("did_1", "did")]),
        step("a", [("mug_1", "mug hand")]),
        step("a", [("mug_1", None), ("task_1", "finished")]),
        {"event": "episode", "episode": "b"},
        step("b", [("mug_1", "mug desk")]),  # a mug of another house
    ]
    kinds, layers = anatomy.totals(entries)
    mugs = kinds["object"]
    assert (mugs.segments, mugs.changes, mugs.existing_steps, len(mugs.changed_ids)) == (2, 1, 3, 1)
    assert mugs.rate == pytest.approx(100 / 3) and kinds["receptacle"].changes == 0
    assert [kinds[kind].existing_steps for kind in ("executed skills", "finished tasks")] == [3, 1]
    assert layers.steps == 4 and layers.computed == {0: 40, 1: 16} and layers.loaded == {0: 1200, 1: 1200}


def test_tables_agree_with_the_trace(call: Command, tiny_model: Path) -> None:
    settings = "planner=keep", f"model={tiny_model}", "prompt.encoder=hashed", "eval.episodes=1", "env.max_steps=3"
    assert call(alfred.main, *settings, "eval.out=runs")[0] == 0
    (run,) = Path("runs").iterdir()
    steps = [entry for entry in read_trace(run / "trace.jsonl") if entry["event"] == "step"]
    code, out, _ = call(anatomy.main, str(run), "--markdown")
    assert code == 0
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| 0 |") or line.startswith("| 1 |")]
    for layer, row in enumerate(rows):
        computed = sum(entry["active_rows"][layer] for entry in steps) / len(steps)
        assert row[1] == f"{computed:.1f}"
    assert len(rows) == 2


def test_a_run_without_a_model_is_one_line(call: Command) -> None:
    assert call(alfred.main, "planner=random", "eval.episodes=1", "eval.out=runs")[0] == 0
    (run,) = Path("runs").iterdir()
    assert_refused(call(anatomy.main, str(run)), "no step of a planner with a model")
    assert_refused(call(anatomy.main, "nowhere"), "nowhere has no trace.jsonl")


@pytest.mark.parametrize("field", ["facts", "token_ids", "active_rows", "loads", "extra"])
def test_an_entry_of_another_shape_is_named_by_its_line(field: str) -> None:
    entries = [{"event": "episode", "episode": "a"}, step("a", [("desk_1", "desk")]) | {field: None}]
    with pytest.raises(DataError, match=r"run/trace.jsonl:2 is not an entry of a trace \((Type|Attribute)Error"):
        anatomy.totals(entries, "run/trace.jsonl")
