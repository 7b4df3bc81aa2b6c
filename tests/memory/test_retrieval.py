from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.graph import prompt_order
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.store import SegmentStore
from tests.memory.houses import furnish, make_store


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


def test_group_scores() -> None:
    with pytest.raises(ConfigError, match="median"):
        Embedding(group_score="median")
    store = house(10)
    assert Embedding(group_score="mean").select("mug_7", store, 12)[-1] == "agent"


def test_ties_go_to_the_older() -> None:
    store = make_store()
    for i in range(6):
        store.put(f"s{i}", "object", "the same words\n")
    store.graph.update(store)
    assert Embedding().select("anything", store, 3) == ["s0", "s1", "s2"]


@given(st.integers(0, 45), st.sampled_from([0, 10]), st.booleans(), st.sampled_from(["mug_3", "cabinet", "open", ""]))
@settings(max_examples=60, deadline=None)
def test_choice_is_closed_bounded_and_repeatable(budget: int, quiet: int, mixed: bool, query: str) -> None:
    store = house(quiet)
    chosen = Embedding(mixed=mixed).select(query, store, budget)
    assert len(chosen) == len(set(chosen)) <= max(budget, 1)
    assert chosen[-1] == "agent"
    assert all(store.get(id).parent in (None, *chosen) for id in chosen)
    assert chosen == Embedding(mixed=mixed).select(query, house(quiet), budget)
