from __future__ import annotations

from typing import Any

from keep_agent.rollout.trace import Entry
from keep_agent.viewer.history import History
from keep_agent.viewer.world import KnownWorld, known_world
from tests.keep_agent.viewer.traces import history_of


def facts_of(*facts: tuple[int, dict[str, Any]]) -> History[Entry]:
    return history_of(*((step, fact["id"], None if fact.get("gone") else fact) for step, fact in facts))


def fact(id: str, place: str = "", category: str = "object", **fields: Any) -> dict[str, Any]:
    return {"id": id, "category": category, "type": "thing", **({"place": place} if place else {}), **fields}


def lines(view: KnownWorld) -> list[tuple[str, int]]:
    return [(thing.id, thing.depth) for thing in view.things]


FRIDGE = fact("fridge_1", "kitchen_1", "receptacle", states=["closed"])
ROBOT = fact("agent", "fridge_1", "agent", holds="egg_1", sees=["milk_1"])


def test_things_are_below_their_places() -> None:
    history = facts_of((0, fact("milk_1", "fridge_1")), (0, FRIDGE), (0, fact("shelf_1", category="receptacle")))
    assert lines(known_world(history, 0)) == [("kitchen_1", 0), ("fridge_1", 1), ("milk_1", 2), ("shelf_1", 0)]
    kitchen, fridge, *_ = known_world(history, 0).things
    assert (kitchen.category, kitchen.step) == ("", -1) and fridge.states == ("closed",)


def test_agent_has_a_place_and_the_things_in_its_hands_have_none() -> None:
    history = facts_of((0, FRIDGE), (1, fact("egg_1", "agent")), (1, fact("milk_1", "fridge_1")), (1, ROBOT))
    view = known_world(history, 1)
    assert (view.agent, view.holds) == ("fridge_1", ("egg_1",))
    assert "egg_1" not in [thing.id for thing in view.things]
    assert [thing.id for thing in view.things if thing.visible] == ["milk_1"]
    assert (known_world(history, 0).agent, known_world(history, 0).holds) == ("", ())


def test_world_at_an_earlier_step() -> None:
    eggs = [(0, fact("egg_1", "fridge_1")), (2, fact("egg_1", "table_1")), (3, fact("egg_1", gone=True))]
    history = facts_of((0, FRIDGE), *eggs)
    assert ("egg_1", 2) in lines(known_world(history, 1)) and ("egg_1", 1) in lines(known_world(history, 2))
    assert "egg_1" not in dict(lines(known_world(history, 3)))
    assert [thing.step for thing in known_world(history, 2).things if thing.id == "egg_1"] == [2]


def test_cycle_of_places_is_cut() -> None:
    history = facts_of((0, fact("a", "b")), (0, fact("b", "a")), (0, fact("c", "c")))
    assert sorted(dict(lines(known_world(history, 0)))) == ["a", "b", "c"]


def test_world_without_facts_is_empty() -> None:
    assert known_world(facts_of(), 0) == KnownWorld((), "", ())
