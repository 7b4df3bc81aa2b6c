from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.segments.prompt_order import prompt_order
from memory.segments.store import SegmentStore
from tests.memory.houses import furnish, make_store
from tests.references import embedding as slow


def house(quiet: int, objects: int = 30) -> SegmentStore:
    store = make_store()
    furnish(store, cabinets=6, objects=objects)
    store.graph.update(store)
    store.step = quiet
    store.graph.update(store)
    return store


def test_all_takes_everything_in_order() -> None:
    store = house(0)
    assert All().select("q", store, 3) == prompt_order([s.id for s in store], store)
    assert Embedding().select("q", store, len(store)) == All().select("q", store, 0)


def test_what_matches_comes_with_its_header_and_the_agent() -> None:
    store = house(0)
    assert Embedding().select("mug_7", store, 3) == ["cabinet_2", "mug_7", "agent"]


def test_static_groups_come_whole_or_not_at_all() -> None:
    store = house(10)
    chosen = Embedding().select("mug_7", store, 12)
    assert "mug_7" in chosen
    for group in store.graph.groups.values():
        assert len(set(group.members) & set(chosen)) in (0, len(group.members))
    singly = Embedding(mixed=False).select("mug_7", store, 3)
    assert singly == ["cabinet_2", "mug_7", "agent"]


def test_what_was_done_last_in_this_task_is_always_in() -> None:
    store = house(0)
    for number in range(8):
        store.put(f"did_{number}", "history", f"did go to shelf_{number}\n")
    store.graph.update(store)
    chosen = Embedding(recent=2).select("mug_7", store, 12)
    assert [id for id in chosen if id.startswith("did")] == ["did_6", "did_7"]
    assert [id for id in Embedding().select("mug_7", store, 12) if id.startswith("did")] == ["did_5", "did_6", "did_7"]
    store.put("task_1", "task", "finished it\n")
    store.put("did_8", "history", "did open shelf_8\n")
    store.graph.update(store)
    assert [id for id in Embedding().select("mug_7", store, 12) if id.startswith("did")] == ["did_8"]


def test_a_later_word_comes_with_what_it_amends() -> None:
    store = house(0)
    store.put("mug_7/now", "object", "now mug hand\n", parent="mug_7")
    store.graph.update(store)
    assert Embedding().select("mug_7 cabinet_2", store, 4) == ["cabinet_2", "mug_7", "mug_7/now", "agent"]
    assert Embedding().select("now hand", store, 4) == ["cabinet_2", "mug_7", "mug_7/now", "agent"]
    assert "mug_7" not in Embedding().select("mug_7 cabinet_2", store, 3)


def test_a_group_larger_than_the_budget_is_taken_singly() -> None:
    store = make_store()
    store.put("shelf_1", "receptacle", "shelf shelf_1\n")
    for i in range(20):
        store.put(f"book_{i}", "object", f"there book book_{i}\n", parent="shelf_1")
    store.graph.update(store)
    store.step = 10
    store.graph.update(store)
    assert store.graph.group_of("book_13").static
    assert Embedding().select("book_13", store, 2) == ["shelf_1", "book_13"]
    assert len(Embedding().select("book_13", store, 21)) == 21


def shelves(count: int, members: int) -> SegmentStore:
    """Static groups ``o_GROUP_*`` of so many members, the first of which, ``o_GROUP_0``, the others refer back to."""
    store = make_store()
    for group in range(count):
        store.put(f"o_{group}_0", "receptacle", f"shelf {group * 'very '}high\n")
        for i in range(1, members):
            store.put(f"o_{group}_{i}", "object", f"book {group} number {i}\n", parent=f"o_{group}_0")
    store.graph.update(store)
    store.step = 10
    store.graph.update(store)
    return store


@pytest.mark.parametrize("group_score", ["max", "mean"])
def test_a_group_that_brings_too_many_others_is_taken_singly(group_score: str) -> None:
    """Three static groups of 25; one member of the first has moved to the second, so together they are 50."""
    store = shelves(3, 25)
    store.put("o_0_3", "object", store.get("o_0_3").text, parent="o_1_0")
    store.graph.update(store)
    assert store.graph.group_of("o_0_3").static and len(store.graph.group_of("o_0_3").members) == 25
    chosen = Embedding(group_score=group_score).select("book 0 number 3", store, 40)
    assert "o_0_3" in chosen and "o_1_0" in chosen
    assert len(chosen) == 40, "no place stays free"
    assert all(store.get(id).parent in (None, *chosen) for id in chosen)


def test_a_segment_may_refer_into_a_group_that_leaves_no_room_for_it() -> None:
    store = shelves(2, 39)
    store.put("agent", "agent", "agent at shelf\n")
    store.put("pen_1", "object", "pen pen_1\n")
    store.graph.update(store)
    store.put("pen_1", "object", "pen pen_1\n", parent="o_0_0")
    store.graph.update(store)
    assert len(store.graph.group_of("pen_1").members) == 1
    chosen = Embedding().select("pen_1", store, 40)
    assert {"pen_1", "o_0_0", "agent"} < set(chosen) and len(chosen) == 40
    assert Embedding().select("book 1 number 5", store, 40)[:-1] == list(store.graph.group_of("o_1_5").members)


def test_group_scores() -> None:
    with pytest.raises(ConfigError, match="median"):
        Embedding(group_score="median")
    with pytest.raises(ConfigError, match="recent=-1 is a number of things done"):
        Embedding(recent=-1)
    store = house(10)
    assert Embedding(group_score="mean").select("mug_7", store, 12)[-1] == "agent"


def test_ties_go_to_the_older() -> None:
    store = make_store()
    for i in range(6):
        store.put(f"s{i}", "object", "the same words\n")
    store.graph.update(store)
    assert Embedding().select("anything", store, 3) == ["s0", "s1", "s2"]


@given(st.integers(0, 45), st.sampled_from([0, 10]), st.booleans(), st.sampled_from(["mug_3", "cabinet", "open", ""]))
@settings(max_examples=60)
def test_choice_is_closed_bounded_and_repeatable(budget: int, quiet: int, mixed: bool, query: str) -> None:
    store = house(quiet)
    chosen = Embedding(mixed=mixed).select(query, store, budget)
    assert len(chosen) == len(set(chosen)) <= max(budget, 1)
    assert chosen[-1] == "agent"
    assert all(store.get(id).parent in (None, *chosen) for id in chosen)
    assert chosen == Embedding(mixed=mixed).select(query, house(quiet), budget)


EDITS = st.lists(
    st.tuples(st.integers(0, 24), st.sampled_from(["cabinet_1", "cabinet_2", "table", "hand", None])), max_size=12
)
KINDS = ("mug", "apple")


def lived_in(edits: list[list[tuple[int, str | None]]], quiet: int) -> SegmentStore:
    """A house in which things moved, went, came back, were spoken of again, and then stayed for ``quiet`` steps."""
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
def test_the_choice_is_that_of_looking_at_everything(
    edits: list[list[tuple[int, str | None]]], quiet: int, budget: int, mixed: bool, group_score: str
) -> None:
    store, stage = lived_in(edits, quiet), Embedding(mixed, group_score)
    for query in ("mug_7 cabinet_2", "now apple hand", "nothing of the kind"):
        if len(store) > budget:
            assert stage.select(query, store, budget) == slow.select(stage, query, store, budget)


def test_the_choice_among_many_is_that_of_looking_at_everything() -> None:
    store = make_store()
    furnish(store, cabinets=20, objects=400)
    store.put("agent", "agent", "agent\n")
    store.graph.update(store)
    for stage in (Embedding(), Embedding(mixed=False)):
        for budget in (40, 395):
            assert stage.select("mug_7", store, budget) == slow.select(stage, "mug_7", store, budget)
