from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, DataError
from memory.segments.store import HISTORY, SegmentStore
from tests.memory.houses import encode_text


def test_the_same_text_is_no_new_version() -> None:
    store = SegmentStore()
    first = store.put("mug_1", "object", "mug mug_1 cabinet_1\n")
    store.advance()
    assert store.put("mug_1", "object", "mug mug_1 cabinet_1\n") is first and len(store.history) == 1
    moved_in = store.put("mug_1", "object", "mug mug_1 cabinet_1\n", parent="cabinet_1")
    assert (moved_in.version, moved_in.last_changed, moved_in.parent) == (1, 0, "cabinet_1")


def test_new_text_is_a_new_version() -> None:
    store = SegmentStore(encode_text)
    store.put("mug_1", "object", "mug mug_1 cabinet_1\n")
    before = store.tokens("mug_1")
    store.advance()
    segment = store.put("mug_1", "object", "mug mug_1 table_1\n")
    assert (segment.version, segment.created, segment.last_changed) == (2, 1, 1)
    assert store.tokens("mug_1") != before and [(c.step, c.version) for c in store.history] == [(0, 1), (1, 2)]


def test_a_recreated_id_is_another_segment() -> None:
    store = SegmentStore()
    store.put("a", "object", "a\n")
    store.put("b", "object", "b\n")
    store.remove("a")
    assert store.put("a", "object", "a\n").created == 3 and [segment.id for segment in store] == ["b", "a"]


@pytest.mark.parametrize("text", ["no newline", "two\nlines\n", "\n", ""])
def test_text_must_be_one_line(text: str) -> None:
    with pytest.raises(DataError, match="one line"):
        SegmentStore().put("a", "object", text)


def test_errors_name_the_value() -> None:
    store = SegmentStore()
    store.put("a", "object", "a\n")
    with pytest.raises(DataError, match="'thing'"):
        store.put("b", "thing", "b\n")
    with pytest.raises(DataError, match="is a object"):
        store.put("a", "task", "a\n")
    with pytest.raises(DataError, match="'z'"):
        store.remove("z")
    with pytest.raises(ConfigError, match="tokenizer"):
        store.tokens("a")
    with pytest.raises(ConfigError, match="graph"):
        _ = store.graph


EDITS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["x\n", "y\n", "z\n", None]), st.booleans()), max_size=40
)


@given(EDITS)
@settings(max_examples=100)
def test_store_equals_a_dictionary(edits: list[tuple[str, str | None, bool]]) -> None:
    store, model = SegmentStore(encode_text), {}
    for id, text, advance in edits:
        if text is None and id in model:
            store.remove(id)
            del model[id]
        elif text is not None:
            store.put(id, "object", text)
            model[id] = text
        if advance:
            store.advance()
        assert {segment.id: segment.text for segment in store} == model
        assert all(store.tokens(id) == tuple(encode_text(text)) for id, text in model.items())
    replayed: dict[str, str] = {}
    for change in store.history:
        replayed.pop(change.id, None)
        if change.text is not None:
            replayed[change.id] = change.text
    assert replayed == model


def test_old_changes_are_forgotten() -> None:
    """For a forgotten position ``changed`` returns all segments."""
    store = SegmentStore()
    store.put("cup", "object", "cup\n")
    for number in range(3 * HISTORY):
        store.put("mug", "object", f"mug {number}\n")
        store.drop(store.changes - 5)
    assert len(store.history) == HISTORY and store.changes == 3 * HISTORY + 1
    assert list(store.changed_ids(store.changes)) == [] and list(store.changed_ids(store.changes - HISTORY)) == ["mug"]
    assert list(store.changed_ids(0)) == ["cup", "mug"]


PUTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["object", "task", ""]), st.sampled_from(["a", "b", "z", None])),
    max_size=40,
)


@given(PUTS)
@settings(max_examples=100)
def test_segments_are_indexed_by_category_and_parent(edits: list[tuple[str, str, str | None]]) -> None:
    store = SegmentStore()
    for id, category, parent in edits:
        if id in store and category in ("", store.get(id).category):
            store.remove(id) if not category else store.put(id, category, "text\n", parent)
        elif id not in store and category:
            store.put(id, category, "text\n", parent)
        for kind in ("object", "task"):
            assert set(store.of(kind)) == {segment.id for segment in store if segment.category == kind}
            for parent_id in "abz":
                referring = {s.id for s in store if (s.parent, s.category) == (parent_id, kind)}
                assert set(store.children(parent_id, kind)) == referring
    store.clear()
    assert not store.of("object") and not store.children("a", "object")
