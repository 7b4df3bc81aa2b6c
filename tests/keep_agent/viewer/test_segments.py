from __future__ import annotations

from typing import Any

from keep_agent.viewer.history import History
from keep_agent.viewer.segments import ranks_of, segment_views
from tests.keep_agent.viewer.traces import history_of, prompt


def with_last_layers(*last: int, hit: tuple[bool, bool] = (True, True)) -> dict[str, Any]:
    entry = prompt()
    for segment, unit, layer, is_hit in zip(entry["segments"], entry["units"], last, hit, strict=True):
        segment["last_layer"], unit["hit"] = layer, is_hit
    return entry


def states(entry: dict[str, Any], history: History[str], step: int) -> list[str]:
    return [view.state for view in segment_views(entry, history, step)]


def test_segment_recomputed_at_layer_0_only_is_a_hit() -> None:
    assert states(with_last_layers(-1, 0), history_of(), 0) == ["hit", "hit"]
    assert states(with_last_layers(1, 7), history_of(), 0) == ["recomputed", "recomputed"]


def test_missed_segment_is_changed_only_at_the_step_of_a_new_text() -> None:
    entry = with_last_layers(1, 1, hit=(False, False))
    assert states(entry, history_of((0, "a", "one"), (0, "b", "one")), 0) == ["fresh", "fresh"], "the first text"
    history = history_of((0, "a", "one"), (0, "b", "one"), (3, "a", "two"))
    assert states(entry, history, 3) == ["changed", "fresh"], "the group of b was encoded again"
    assert states(entry, history, 4) == ["fresh", "fresh"]


def test_kind_unit_and_text_follow_from_rows() -> None:
    first, second = segment_views(prompt(), history_of((0, "a", "text of a"), (2, "b", "text of b")), 2)
    assert (first.kind, first.first_unit, first.last_unit) == ("static", 0, 0)
    assert (first.text, first.written) == ("text of a", 0)
    assert (second.kind, second.first_unit, second.text, second.written) == ("dynamic", 1, "text of b", 2)
    assert first.block == "0123456789abcdef"
    first, _ = segment_views(prompt(units=[]), history_of(), 0)
    assert (first.first_unit, first.kind, first.state, first.from_block) == (-1, "", "fresh", 0)


def test_segment_across_blocks_counts_the_rows_from_hits() -> None:
    blocks = [{"kind": "prefix", "start": 1, "tokens": 2, "hit": True, "block": "x"}]
    blocks.append({"kind": "prefix", "start": 3, "tokens": 4, "hit": False, "block": ""})
    first, second = segment_views(prompt(units=blocks), history_of(), 0)
    assert (first.first_unit, first.last_unit, first.from_block, first.state, first.block) == (0, 1, 2, "fresh", "")
    assert (second.first_unit, second.from_block, second.kind) == (1, 0, "prefix")


def test_older_versions_in_a_transcript_keep_their_text_without_ranks() -> None:
    spans = [{"id": "a", "start": 1 + index, "stop": 2 + index, "last_layer": -1} for index in range(3)]
    history = history_of((0, "a", "one"), (1, "a", "two"), (2, "a", "three"), (5, "a", "later"))
    views = segment_views(prompt(segments=spans), history, 3)
    assert [(view.key, view.text) for view in views] == [("a@2", "one"), ("a@1", "two"), ("a", "three")]
    assert [bool(view.ranks) for view in views] == [False, False, True]
    views = segment_views(prompt(segments=spans[:2]), history, 0)
    assert [view.text for view in views] == [None, "one"], "no text is known for an older version"


def test_ranks_follow_the_attention_mass_of_each_layer() -> None:
    hops = [
        {"layer": 2, "hops": 1, "edges": [["", "a", 0.1], ["", "b", 0.2], ["b", "a", 0.3]]},
        {"layer": 5, "hops": 1, "edges": [["", "b", 0.4]]},
    ]
    result = ranks_of(hops)
    assert [(layer, rank) for layer, rank, _ in result["a"]] == [(2, 1)]
    assert [(layer, rank) for layer, rank, _ in result["b"]] == [(2, 2), (5, 1)]
    assert abs(result["a"][0][2] - 0.4) < 1e-9
