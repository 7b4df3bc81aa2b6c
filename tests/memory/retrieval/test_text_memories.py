"""Choices of text memories: KARMA's long and short memory, LLM-Planner's nearest examples."""

from __future__ import annotations

import pytest

from keep_agent.errors import ConfigError
from memory.retrieval.long_short import LongShort
from memory.retrieval.nearest_examples import NearestExamples
from memory.segments.store import SegmentStore
from tests.memory.houses import make_house, make_store


def changed_house() -> SegmentStore:
    """Make a house with 6 cabinets and 30 objects, of which ten change one after the other, and some actions."""
    store = make_house(0, cabinets=6, objects=30)
    for number in range(10):
        store.advance()
        store.put(f"mug_{number}", "object", f"mug mug_{number} moved {number}\n")
        store.put(f"did_{number}", "history", f"did put mug_{number}\n")
    store.graph.update(store)
    return store


def test_places_are_kept_and_only_the_latest_changes_compete() -> None:
    store = changed_house()
    selection = LongShort(capacity=4, top_k=2, recent=3).select("mug_1 mug_7", store, 80)
    assert set(store.of("receptacle")) <= set(selection) and "agent" in selection
    assert [id for id in selection if id in store.of("history")] == ["did_7", "did_8", "did_9"]
    things = [id for id in selection if id in store.of("object")]
    assert len(things) == 2 and "mug_7" in things and set(things) <= {f"mug_{n}" for n in (6, 7, 8, 9)}


def test_a_small_budget_leaves_out_places_first() -> None:
    store = changed_house()
    selection = LongShort(capacity=4, top_k=4, recent=1).select("cabinet_2", store, 8)
    assert len(selection) == 8 and {f"mug_{n}" for n in (6, 7, 8, 9)} <= set(selection)
    assert "cabinet_2" in selection
    assert len(LongShort(capacity=4, top_k=4, recent=1).select("cabinet_2", store, 3)) == 3
    with pytest.raises(ConfigError, match="top_k=5"):
        LongShort(capacity=4, top_k=5)


def test_examples_replace_the_facts_about_the_house() -> None:
    store = make_store()
    for number, thing in enumerate(("mug", "pan", "lamp", "book")):
        store.put(f"example_{number}", "task", f"example put a {thing} on the desk did find a {thing}\n")
    store.put("mug_1", "object", "mug mug_1 desk_1\n")
    store.put("agent", "agent", "agent at desk_1\n")
    store.put("did_1", "history", "did find a mug\n")
    store.graph.update(store)
    assert NearestExamples(top_k=1).select("put a pan on the desk", store, 10) == ["example_1", "did_1", "agent"]
    every = NearestExamples().select("put a pan on the desk", store, 10)
    assert "mug_1" not in every and {f"example_{n}" for n in range(4)} <= set(every)
    assert len(NearestExamples().select("put a pan on the desk", store, 3)) == 3
    with pytest.raises(ConfigError, match="top_k=-1"):
        NearestExamples(top_k=-1)


def test_a_thing_comes_with_the_texts_that_amend_it_and_its_place() -> None:
    store = make_store()
    store.put("desk_1", "receptacle", "desk desk_1\n")
    store.put("shelf_1", "receptacle", "shelf shelf_1\n")
    for name in ("mug_1", "pan_1"):
        store.put(name, "object", f"there {name[:3]} {name}\n", parent="desk_1")
    store.advance()
    store.put("pan_1/now", "object", "now pan pan_1 hand\n", parent="pan_1")
    store.graph.update(store)
    selection = LongShort(capacity=1, top_k=1, recent=0).select("pan_1", store, 3)
    assert selection == ["desk_1", "pan_1", "pan_1/now"]
    assert LongShort(capacity=1, top_k=1, recent=0).select("pan_1", store, 2) == ["desk_1", "shelf_1"]
