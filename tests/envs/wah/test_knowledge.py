"""What the agent knows, when it learns it, and which facts that gives."""

from __future__ import annotations

import pytest

from envs.fact import Fact
from envs.wah.home import Home
from envs.wah.knowledge import Knowledge
from keep_agent.errors import ConfigError
from tests.envs.wah.homes import add, apartment, do, home, one, put

FURNITURE = {
    *("kitchen_1", "livingroom_1", "fridge_1", "dishwasher_1", "kitchentable_1", "kitchencounter_1"),
    *("kitchencabinet_1", "kitchencabinet_2", "coffeetable_1", "sofa_1", "bookshelf_1", "tv_1"),
}
THINGS = {
    *("apple_1", "apple_2", "juice_1", "plate_1", "plate_2", "waterglass_1", "cutleryfork_1", "box_1", "toy_1"),
    *("book_1", "cupcake_1", "slippers_1"),
}


def told(knowledge: Knowledge) -> dict[str, Fact]:
    """The changed facts by id."""
    facts = knowledge.update()
    assert len({fact.id for fact in facts}) == len(facts)
    return {fact.id: fact for fact in facts}


@pytest.fixture
def house() -> Home:
    return home()


def test_full_knowledge_names_everything_once(house: Home) -> None:
    knowledge = Knowledge(house)
    facts = told(knowledge)
    assert facts.keys() == FURNITURE | THINGS | {"agent"}, "no floor and no door"
    assert facts["kitchen_1"] == Fact("kitchen_1", "receptacle", "kitchen")
    assert facts["fridge_1"] == Fact("fridge_1", "receptacle", "fridge", place="kitchen_1", states=("closed",))
    assert facts["dishwasher_1"].states == ("closed", "off")
    assert facts["tv_1"].states == ("off",)
    assert facts["apple_1"] == Fact("apple_1", "object", "apple", place="kitchentable_1")
    assert (facts["apple_2"].place, facts["toy_1"].place) == ("fridge_1", "box_1")
    assert facts["slippers_1"].place == "livingroom_1", "the floor is no place"
    assert facts["agent"] == Fact("agent", "agent", "agent", place="kitchen_1")
    assert knowledge.update() == []


def test_facts_come_by_id_and_the_agent_last(house: Home) -> None:
    knowledge = Knowledge(house)
    ids = [fact.id for fact in knowledge.update()]
    assert ids[:3] == ["kitchen_1", "livingroom_1", "fridge_1"] and ids[-1] == "agent"
    assert [one(house, name) for name in ids[:-1]] == sorted(knowledge.known)


def test_partial_knowledge_starts_with_furniture_and_the_room_one_is_in(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    facts = told(knowledge)
    assert facts.keys() == FURNITURE | {"apple_1", "cutleryfork_1", "plate_1", "agent"}
    unseen = {name for name, fact in facts.items() if "unseen" in fact.states}
    assert unseen == {"livingroom_1", "fridge_1", "dishwasher_1", "kitchencabinet_1", "kitchencabinet_2"}
    assert facts["dishwasher_1"].states == ("closed", "off", "unseen")


def test_a_room_is_seen_when_it_is_entered(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    knowledge.update()
    do(house, "walk livingroom_1")
    facts = told(knowledge)
    assert facts.keys() == {"livingroom_1", "book_1", "cupcake_1", "box_1", "slippers_1", "agent"}
    assert facts["livingroom_1"].states == ()
    assert facts["box_1"] == Fact("box_1", "object", "box", place="bookshelf_1", states=("closed", "unseen"))


def test_a_closed_container_is_seen_when_it_is_opened(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    knowledge.update()
    do(house, "walk fridge_1")
    assert told(knowledge).keys() == {"agent"}
    do(house, "open fridge_1")
    facts = told(knowledge)
    assert facts.keys() == {"fridge_1", "apple_2", "juice_1", "agent"}
    assert facts["fridge_1"].states == ("open",)
    assert facts["agent"].sees == ("apple_2", "juice_1")


def test_what_was_seen_is_remembered(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    do(house, "walk fridge_1", "open fridge_1")
    knowledge.update()
    do(house, "close fridge_1")
    facts = told(knowledge)
    assert facts.keys() == {"fridge_1", "agent"} and facts["fridge_1"].states == ("closed",)
    do(house, "walk sofa_1")
    knowledge.update()
    assert knowledge.knows(house.graph.of_class("apple")[1])
    assert knowledge.facts["apple_2"].place == "fridge_1"
    do(house, "walk fridge_1")
    assert told(knowledge).keys() == {"agent"}


def test_a_box_in_an_open_shelf_has_to_be_opened_too(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    do(house, "walk bookshelf_1")
    assert told(knowledge)["agent"].sees == ("box_1",)
    do(house, "open box_1")
    facts = told(knowledge)
    assert facts.keys() == {"box_1", "toy_1", "agent"} and facts["toy_1"].place == "box_1"
    assert facts["agent"].sees == ("box_1", "toy_1")


def test_an_open_box_in_a_closed_cabinet_shows_all_at_once() -> None:
    content = apartment()
    put(content, "box", "in kitchencabinet_1")
    put(content, "candybar", "in box_2")
    house = home(content)
    do(house, "open box_2")
    knowledge = Knowledge(house, "partial")
    knowledge.update()
    do(house, "walk kitchencabinet_1", "open kitchencabinet_1")
    assert told(knowledge).keys() == {"kitchencabinet_1", "plate_2", "box_2", "candybar_1", "agent"}
    assert knowledge.facts["box_2"].states == ("open",)


def test_what_is_opened_through_a_wall_is_seen_when_its_room_is_entered() -> None:
    content = apartment()
    add(content, "cabinet", (7.0, 0.45, 5.0), "in livingroom_1")
    put(content, "candle", "in cabinet_1")
    house = home(content)
    knowledge = Knowledge(house, "partial")
    knowledge.update()
    do(house, "walk kitchencabinet_2", "open cabinet_1")
    facts = told(knowledge)
    assert facts["cabinet_1"].states == ("open",) and "candle_1" not in facts
    do(house, "walk livingroom_1")
    assert told(knowledge)["candle_1"].place == "cabinet_1"


def test_what_a_box_leaves_behind_is_seen(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    do(house, "walk bookshelf_1")
    knowledge.update()
    do(house, "grab box_1")
    facts = told(knowledge)
    assert facts.keys() == {"box_1", "toy_1", "agent"}
    assert facts["toy_1"].place == "livingroom_1" and facts["box_1"].place == "agent"


def test_carrying_changes_two_facts(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk kitchentable_1")
    knowledge.update()
    do(house, "grab apple_1")
    assert told(knowledge) == {
        "apple_1": Fact("apple_1", "object", "apple", place="agent"),
        "agent": Fact("agent", "agent", "agent", place="kitchentable_1", holds="apple_1", sees=("cutleryfork_1",)),
    }
    do(house, "walk sofa_1")
    assert told(knowledge).keys() == {"agent"}, "it stays in the hand"
    do(house, "putback apple_1 sofa_1")
    facts = told(knowledge)
    assert facts.keys() == {"apple_1", "agent"} and facts["apple_1"].place == "sofa_1"


def test_both_hands_are_told_the_right_one_first(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk kitchentable_1", "grab cutleryfork_1", "grab apple_1")
    assert told(knowledge)["agent"].holds == "cutleryfork_1 apple_1"


@pytest.mark.parametrize(
    ("words", "place", "sees"),
    [
        ("walk livingroom_1", "livingroom_1", ()),
        ("walk fridge_1", "fridge_1", ()),
        ("walk coffeetable_1", "coffeetable_1", ("book_1", "cupcake_1")),
        ("walk kitchencounter_1", "kitchencounter_1", ("plate_1", "pancake_1")),
        ("walk slippers_1", "slippers_1", ()),
    ],
)
def test_the_agent_sees_what_lies_before_it(words: str, place: str, sees: tuple[str, ...]) -> None:
    content = apartment()
    put(content, "pancake", "on plate_1")
    house = home(content)
    knowledge = Knowledge(house)
    do(house, words)
    agent = told(knowledge)["agent"]
    assert (agent.place, agent.sees) == (place, sees)


def test_who_was_sent_to_a_door_is_in_a_room(house: Home) -> None:
    knowledge = Knowledge(house)
    knowledge.update()
    do(house, "walk floor_1")
    assert told(knowledge)["agent"].place == "livingroom_1"


def test_sitting_is_told(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk sofa_1", "sit sofa_1")
    assert told(knowledge)["agent"].states == ("sitting",)
    do(house, "walk sofa_1")
    assert told(knowledge)["agent"].states == ()


def test_states_are_told_when_they_change(house: Home) -> None:
    knowledge = Knowledge(house)
    do(house, "walk dishwasher_1")
    knowledge.update()
    do(house, "switchon dishwasher_1")
    facts = told(knowledge)
    assert facts.keys() == {"dishwasher_1"} and facts["dishwasher_1"].states == ("closed", "on")
    do(house, "open dishwasher_1", "close dishwasher_1")
    assert told(knowledge) == {}, "only what is different in the end"


def test_what_is_unseen_of_furniture_and_things(house: Home) -> None:
    knowledge = Knowledge(house, "partial")
    unseen = {name for name in FURNITURE | THINGS if knowledge.unseen(one(house, name))}
    assert unseen == {
        *("livingroom_1", "fridge_1", "dishwasher_1", "kitchencabinet_1", "kitchencabinet_2", "box_1"),
    }
    assert not any(Knowledge(house).unseen(one(house, name)) for name in FURNITURE)


def test_a_copy_takes_no_news_away(house: Home) -> None:
    knowledge = Knowledge(house)
    knowledge.update()
    do(house, "walk kitchentable_1", "grab apple_1")
    fresh = {fact.id: fact for fact in Knowledge(house.copy()).update()}
    knowledge.update()
    assert knowledge.facts == fresh


def test_unknown_observability_is_an_error(house: Home) -> None:
    with pytest.raises(ConfigError, match="'foggy' is unknown; use one of full, partial"):
        Knowledge(house, "foggy")  # type: ignore[arg-type]
