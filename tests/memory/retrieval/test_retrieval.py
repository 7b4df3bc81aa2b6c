from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.segments.store import SegmentStore, prompt_order
from tests.memory.houses import furnish, make_house, make_store, rest
from tests.references import embedding as slow

house = partial(make_house, cabinets=6, objects=30)


def test_all_selects_everything_in_order() -> None:
    store = house(0)
    assert All().select("q", store, 3) == prompt_order([s.id for s in store], store)
    assert Embedding().select("q", store, len(store)) == All().select("q", store, 0)


def test_a_match_brings_its_parent_and_the_agent() -> None:
    store = house(0)
    assert Embedding().select("mug_7", store, 3) == ["cabinet_2", "mug_7", "agent"]
    assert Embedding(group_score="mean").select("mug_7", house(10), 12)[-1] == "agent"


def test_static_groups_are_selected_as_a_whole() -> None:
    store = house(10)
    selection = Embedding().select("mug_7", store, 12)
    assert "mug_7" in selection
    for group in store.graph.groups.values():
        assert len(set(group.members) & set(selection)) in (0, len(group.members))
    singly = Embedding(mixed=False).select("mug_7", store, 3)
    assert singly == ["cabinet_2", "mug_7", "agent"]


def test_the_last_actions_of_the_task_are_always_selected() -> None:
    store = house(0)
    for number in range(8):
        store.put(f"did_{number}", "history", f"did go to shelf_{number}\n")
    store.graph.update(store)
    selection = Embedding(recent=2).select("mug_7", store, 12)
    assert [id for id in selection if id.startswith("did")] == ["did_6", "did_7"]
    assert [id for id in Embedding().select("mug_7", store, 12) if id.startswith("did")] == ["did_5", "did_6", "did_7"]
    store.put("task_1", "task", "finished it\n")
    store.put("did_8", "history", "did open shelf_8\n")
    store.graph.update(store)
    assert [id for id in Embedding().select("mug_7", store, 12) if id.startswith("did")] == ["did_8"]


def test_an_amendment_comes_with_its_segment() -> None:
    store = house(0)
    store.put("mug_7/now", "object", "now mug hand\n", parent="mug_7")
    store.graph.update(store)
    assert Embedding().select("mug_7 cabinet_2", store, 4) == ["cabinet_2", "mug_7", "mug_7/now", "agent"]
    assert Embedding().select("now hand", store, 4) == ["cabinet_2", "mug_7", "mug_7/now", "agent"]
    assert "mug_7" not in Embedding().select("mug_7 cabinet_2", store, 3)


def test_members_of_a_group_above_the_budget_are_selected_singly() -> None:
    store = make_store()
    store.put("shelf_1", "receptacle", "shelf shelf_1\n")
    for i in range(20):
        store.put(f"book_{i}", "object", f"there book book_{i}\n", parent="shelf_1")
    rest(store, 10)
    assert store.graph.group_of["book_13"].static
    assert Embedding().select("book_13", store, 2) == ["shelf_1", "book_13"]
    assert len(Embedding().select("book_13", store, 21)) == 21


def shelves(count: int, members: int) -> SegmentStore:
    """Make ``count`` static groups ``o_GROUP_*``, whose first member ``o_GROUP_0`` is the parent of the others."""
    store = make_store()
    for group in range(count):
        store.put(f"o_{group}_0", "receptacle", f"shelf {group * 'very '}high\n")
        for i in range(1, members):
            store.put(f"o_{group}_{i}", "object", f"book {group} number {i}\n", parent=f"o_{group}_0")
    return rest(store, 10)


@pytest.mark.parametrize("group_score", ["max", "mean"])
def test_members_of_a_group_with_too_many_parents_are_selected_singly(group_score: str) -> None:
    store = shelves(3, 25)
    store.put("o_0_3", "object", store.get("o_0_3").text, parent="o_1_0")
    store.graph.update(store)
    assert store.graph.group_of["o_0_3"].static and len(store.graph.group_of["o_0_3"].members) == 25
    selection = Embedding(group_score=group_score).select("book 0 number 3", store, 40)
    assert "o_0_3" in selection and "o_1_0" in selection
    assert len(selection) == 40, "the budget must be used completely"
    assert all(store.get(id).parent in (None, *selection) for id in selection)


def test_a_segment_may_have_a_parent_in_a_group_without_room_for_it() -> None:
    store = shelves(2, 39)
    store.put("agent", "agent", "agent at shelf\n")
    store.put("pen_1", "object", "pen pen_1\n")
    store.graph.update(store)
    store.put("pen_1", "object", "pen pen_1\n", parent="o_0_0")
    store.graph.update(store)
    assert len(store.graph.group_of["pen_1"].members) == 1
    selection = Embedding().select("pen_1", store, 40)
    assert {"pen_1", "o_0_0", "agent"} < set(selection) and len(selection) == 40
    assert Embedding().select("book 1 number 5", store, 40)[:-1] == list(store.graph.group_of["o_1_5"].members)


def test_ties_go_to_the_older_segment() -> None:
    store = make_store()
    for i in range(6):
        store.put(f"s{i}", "object", "the same words\n")
    store.graph.update(store)
    assert Embedding().select("anything", store, 3) == ["s0", "s1", "s2"]


EDITS = st.lists(
    st.tuples(st.integers(0, 24), st.sampled_from(["cabinet_1", "cabinet_2", "table", "hand", None])), max_size=12
)
KINDS = ("mug", "apple")


def lived_in(edits: list[list[tuple[int, str | None]]], quiet: int) -> SegmentStore:
    """Make a house in which objects moved, vanished, returned and were amended, then stayed for ``quiet`` steps."""
    store = make_store()
    furnish(store, cabinets=3, objects=24)
    for number, step in enumerate(edits):
        for thing, place in step:
            id = f"mug_{thing}"
            if place is None and id in store:
                store.remove(id)
            elif thing % 3:
                parent = "agent" if place == "hand" else f"mug_{thing // 2}"
                store.put(id, "object", f"{KINDS[thing % 2]} {id} {place}\n", parent=parent)
            else:
                store.put(f"{id}/{number}", "object", f"now {id} {place}\n", parent=id)
        store.graph.update(store)
        store.advance()
    store.step += quiet
    store.graph.update(store)
    return store


@given(
    st.lists(EDITS, max_size=4),
    st.sampled_from([0, 9, 12]),
    st.integers(0, 45),
    st.booleans(),
    st.sampled_from(["max", "mean"]),
)
@settings(max_examples=150)
def test_the_selection_equals_the_slow_reference(
    edits: list[list[tuple[int, str | None]]], quiet: int, budget: int, mixed: bool, group_score: str
) -> None:
    store, stage = lived_in(edits, quiet), Embedding(mixed, group_score)
    for query in ("mug_7 cabinet_2", "now apple hand", "nothing of the kind"):
        selection = stage.select(query, store, budget)
        if len(store) > budget:
            assert selection == slow.select(stage, query, store, budget) and len(selection) <= max(budget, 1)
        assert all(store.get(id).parent in (None, *selection) for id in selection if store.get(id).parent in store)


def test_a_large_selection_equals_the_slow_reference() -> None:
    store = make_store()
    furnish(store, cabinets=20, objects=400)
    store.put("agent", "agent", "agent\n")
    store.graph.update(store)
    for stage in (Embedding(), Embedding(mixed=False)):
        for budget in (40, 395):
            assert stage.select("mug_7", store, budget) == slow.select(stage, "mug_7", store, budget)
