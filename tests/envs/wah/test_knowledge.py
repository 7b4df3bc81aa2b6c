"""Knowledge of the agent: observation of rooms and containers, and the facts that it yields."""

from __future__ import annotations

from typing import Any

import pytest

from envs.fact import Fact
from envs.wah.home import Home
from envs.wah.knowledge import Knowledge
from tests.envs.wah.homes import apartment, do, home, node_id

FURNITURE = {
    *("kitchen_1", "livingroom_1", "fridge_1", "dishwasher_1", "kitchentable_1", "kitchencounter_1"),
    *("kitchencabinet_1", "kitchencabinet_2", "coffeetable_1", "sofa_1", "bookshelf_1", "tv_1"),
}
THINGS = {
    *("apple_1", "apple_2", "juice_1", "plate_1", "plate_2", "waterglass_1", "cutleryfork_1", "box_1", "toy_1"),
    *("book_1", "cupcake_1", "slippers_1"),
}


def new_facts(knowledge: Knowledge) -> dict[str, Fact]:
    """Return the new and changed facts by id."""
    facts = knowledge.update()
    assert len({fact.id for fact in facts}) == len(facts)
    return {fact.id: fact for fact in facts}


def changes(house: Home, before: str, steps: str) -> dict[str, Fact]:
    """Return the facts that ``steps`` change after ``before`` under partial observability; commas separate actions."""
    knowledge = Knowledge(house, "partial")
    do(house, *filter(None, before.split(", ")))
    knowledge.update()
    do(house, *steps.split(", "))
    return new_facts(knowledge)


@pytest.fixture
def house() -> Home:
    return home()


def test_full_knowledge_reports_everything_once(house: Home) -> None:
    knowledge = Knowledge(house)
    facts = new_facts(knowledge)
    assert facts.keys() == FURNITURE | THINGS | {"agent"}, "neither floor nor door"
    *names, last = facts
    assert last == "agent" and [node_id(house, name) for name in names] == sorted(knowledge.known)
    assert facts["kitchen_1"] == Fact("kitchen_1", "receptacle", "kitchen")
    assert facts["fridge_1"] == Fact("fridge_1", "receptacle", "fridge", place="kitchen_1", states=("closed",))
    assert facts["dishwasher_1"].states == ("closed", "off")
    assert facts["tv_1"].states == ("off",)
    assert facts["apple_1"] == Fact("apple_1", "object", "apple", place="kitchentable_1")
    assert (facts["apple_2"].place, facts["toy_1"].place) == ("fridge_1", "box_1")
    assert facts["slippers_1"].place == "livingroom_1", "the floor is no place"
    assert facts["agent"] == Fact("agent", "agent", "agent", place="kitchen_1")
    assert knowledge.update() == []


def test_partial_knowledge_starts_with_furniture_and_the_start_room(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    facts = new_facts(knowledge)
    assert facts.keys() == FURNITURE | {"apple_1", "cutleryfork_1", "plate_1", "agent"}
    unseen = {name for name, fact in facts.items() if "unseen" in fact.states}
    assert unseen == {"livingroom_1", "fridge_1", "dishwasher_1", "kitchencabinet_1", "kitchencabinet_2"}
    assert facts["dishwasher_1"].states == ("closed", "off", "unseen")


def test_a_room_is_explored_on_entry(house: Home) -> None:
    facts = changes(house, "", "walk livingroom_1")
    assert facts.keys() == {"livingroom_1", "book_1", "cupcake_1", "box_1", "slippers_1", "agent"}
    assert facts["livingroom_1"].states == ()
    assert facts["box_1"] == Fact("box_1", "object", "box", place="bookshelf_1", states=("closed", "unseen"))


def test_a_closed_container_is_explored_when_it_is_opened(house: Home) -> None:
    assert changes(house, "", "walk fridge_1").keys() == {"agent"}
    facts = changes(house, "", "open fridge_1")
    assert facts.keys() == {"fridge_1", "apple_2", "juice_1", "agent"}
    assert facts["fridge_1"].states == ("open",)
    assert facts["agent"].sees == ("apple_2", "juice_1")


def test_knowledge_persists(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    do(house, "walk fridge_1", "open fridge_1")
    knowledge.update()
    do(house, "close fridge_1")
    facts = new_facts(knowledge)
    assert facts.keys() == {"fridge_1", "agent"} and facts["fridge_1"].states == ("closed",)
    do(house, "walk sofa_1")
    knowledge.update()
    assert knowledge.knows(house.graph.of_class("apple")[1])
    assert knowledge.facts["apple_2"].place == "fridge_1"
    do(house, "walk fridge_1")
    assert new_facts(knowledge).keys() == {"agent"}


def test_a_closed_box_on_a_shelf_must_be_opened_too(house: Home) -> None:
    assert changes(house, "", "walk bookshelf_1")["agent"].sees == ("box_1",)
    facts = changes(house, "", "open box_1")
    assert facts.keys() == {"box_1", "toy_1", "agent"} and facts["toy_1"].place == "box_1"
    assert facts["agent"].sees == ("box_1", "toy_1")


def test_opening_a_cabinet_shows_the_content_of_an_open_box_in_it() -> None:
    house = home(apartment("box in kitchencabinet_1", "candybar in box_2"))
    facts = changes(house, "open box_2", "walk kitchencabinet_1, open kitchencabinet_1")
    assert facts.keys() == {"kitchencabinet_1", "plate_2", "box_2", "candybar_1", "agent"}
    assert facts["box_2"].states == ("open",)


def test_a_container_opened_through_a_wall_is_explored_when_its_room_is_entered() -> None:
    house = home(apartment("cabinet at 7 0.45 5 in livingroom_1", "candle in cabinet_1"))
    knowledge = Knowledge(house, "partial")
    knowledge.update()
    do(house, "walk kitchencabinet_2", "open cabinet_1")
    facts = new_facts(knowledge)
    assert facts["cabinet_1"].states == ("open",) and "candle_1" not in facts
    do(house, "walk livingroom_1")
    assert new_facts(knowledge)["candle_1"].place == "cabinet_1"


def test_the_content_that_a_grabbed_box_leaves_behind_is_seen(house: Home) -> None:
    facts = changes(house, "walk bookshelf_1", "grab box_1")
    assert facts.keys() == {"box_1", "toy_1", "agent"}
    assert facts["toy_1"].place == "livingroom_1" and facts["box_1"].place == "agent"


def test_grabbing_and_putting_change_two_facts(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk kitchentable_1")
    knowledge.update()
    do(house, "grab apple_1")
    assert new_facts(knowledge) == {
        "apple_1": Fact("apple_1", "object", "apple", place="agent"),
        "agent": Fact("agent", "agent", "agent", place="kitchentable_1", holds="apple_1", sees=("cutleryfork_1",)),
    }
    do(house, "walk sofa_1")
    assert new_facts(knowledge).keys() == {"agent"}, "it stays in the hand"
    do(house, "putback apple_1 sofa_1")
    facts = new_facts(knowledge)
    assert facts.keys() == {"apple_1", "agent"} and facts["apple_1"].place == "sofa_1"


@pytest.mark.parametrize(
    ("words", "agent"),
    [
        ("walk livingroom_1", {"place": "livingroom_1"}), ("walk fridge_1", {"place": "fridge_1"}),
        ("walk coffeetable_1", {"place": "coffeetable_1", "sees": ("book_1", "cupcake_1")}),
        ("walk kitchencounter_1", {"place": "kitchencounter_1", "sees": ("plate_1", "pancake_1")}),
        ("walk slippers_1", {"place": "slippers_1"}), ("walk floor_1", {"place": "livingroom_1"}),
        ("walk sofa_1, sit sofa_1", {"place": "sofa_1", "states": ("sitting",)}),
        ("walk sofa_1, sit sofa_1, walk sofa_1", {"place": "sofa_1"}),
        ("walk kitchentable_1, grab cutleryfork_1, grab apple_1",  # the right hand comes first
         {"place": "kitchentable_1", "holds": "cutleryfork_1 apple_1"}),
    ],
)  # fmt: skip
def test_the_agents_fact(words: str, agent: dict[str, Any]) -> None:
    """For an agent at a part of the building, such as the floor, the fact names the room."""
    house = home(apartment("pancake on plate_1"))
    knowledge = Knowledge(house)
    do(house, *words.split(", "))
    assert new_facts(knowledge)["agent"] == Fact("agent", "agent", "agent", **agent)


def test_changed_states_are_reported(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk dishwasher_1")
    knowledge.update()
    do(house, "switchon dishwasher_1")
    facts = new_facts(knowledge)
    assert facts.keys() == {"dishwasher_1"} and facts["dishwasher_1"].states == ("closed", "on")
    do(house, "open dishwasher_1", "close dishwasher_1")
    assert new_facts(knowledge) == {}, "the final state is the same"


def test_knowledge_of_a_copy_takes_no_changes_away(house: Home) -> None:
    knowledge = Knowledge(house)
    knowledge.update()
    do(house, "walk kitchentable_1", "grab apple_1")
    fresh = {fact.id: fact for fact in Knowledge(house.copy()).update()}
    knowledge.update()
    assert knowledge.facts == fresh
