"""What the agent knows, when it learns it, and which facts that gives."""

from __future__ import annotations

import pytest

from envs.alfred.knowledge import Knowledge
from envs.alfred.world import World
from envs.fact import Fact
from keep_agent.errors import ConfigError
from tests.envs.alfred.rooms import bedroom, do, kitchen


def told(knowledge: Knowledge) -> dict[str, Fact]:
    """Return the changed facts by id."""
    return {fact.id: fact for fact in knowledge.update()}


@pytest.fixture
def world() -> World:
    return World(kitchen())


def test_full_knowledge_names_everything_once(world: World) -> None:
    knowledge = Knowledge(world)
    facts = told(knowledge)
    assert facts.keys() == world.things.keys() | {"agent"}
    assert facts["apple_2"] == Fact("apple_2", "object", "apple", place="fridge_1")
    assert facts["fridge_1"] == Fact("fridge_1", "receptacle", "fridge", states=("closed",))
    assert facts["faucet_1"].states == ("off",)
    assert facts["potato_1"].place == "floor"
    assert knowledge.update() == []


def test_partial_knowledge_starts_with_furniture_and_the_floor(world: World) -> None:
    facts = told(Knowledge(world, "partial"))
    objects = [fact.id for fact in facts.values() if fact.category == "object"]
    assert objects == ["potato_1"]
    assert facts["countertop_1"].states == ("unseen",)
    assert facts["cabinet_1"].states == ("closed", "unseen")
    assert facts["faucet_1"].states == ("off",)


def test_surfaces_are_seen_on_arrival_and_containers_when_opened(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    knowledge.update()
    do(world, "goto countertop_1")
    assert told(knowledge).keys() == {"countertop_1", "apple_1", "knife_1", "plate_1", "agent"}
    do(world, "goto fridge_1")
    assert told(knowledge).keys() == {"agent"}
    do(world, "open fridge_1")
    facts = told(knowledge)
    assert facts.keys() == {"fridge_1", "apple_2", "egg_1", "agent"}
    assert facts["fridge_1"].states == ("open",)
    assert facts["agent"].sees == ("apple_2", "egg_1")


def test_what_is_opened_from_beside_it_is_seen(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    knowledge.update()
    do(world, "goto cabinet_2", "open cabinet_1")
    knowledge.update()
    assert knowledge.knows("mug_1")
    assert not knowledge.unseen("cabinet_1")
    assert knowledge.unseen("cabinet_2")


def test_an_open_box_shows_its_content_and_a_closed_one_does_not(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    do(world, "close box_1", "goto countertop_2")
    facts = told(knowledge)
    assert facts["box_1"].states == ("closed",)
    assert "pencil_1" not in facts
    do(world, "open box_1")
    facts = told(knowledge)
    assert facts["box_1"].states == ()
    assert facts["pencil_1"].place == "box_1"


def test_the_agent_sees_what_lies_before_it(world: World) -> None:
    knowledge = Knowledge(world)
    for action, seen in (
        ("goto fridge_1", ()),
        ("open fridge_1", ("apple_2", "egg_1")),
        ("pick egg_1", ("apple_2",)),
        ("goto potato_1", ("potato_1",)),
    ):
        do(world, action)
        assert told(knowledge)["agent"].sees == seen


def test_what_was_seen_is_remembered(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    do(world, "goto countertop_1")
    knowledge.update()
    do(world, "goto fridge_1")
    assert knowledge.update() == [Fact("agent", "agent", "agent", place="fridge_1")]
    assert knowledge.facts["apple_1"].place == "countertop_1"


def test_carrying_changes_two_facts(world: World) -> None:
    knowledge = Knowledge(world)
    knowledge.update()
    do(world, "pick potato_1")
    facts = told(knowledge)
    assert facts.keys() == {"potato_1", "agent"}
    assert facts["potato_1"].place == "agent"
    assert facts["agent"].holds == "potato_1"
    do(world, "drop")
    assert told(knowledge)["potato_1"].place == "floor"


def test_marks_appear_and_end_with_the_task(world: World) -> None:
    knowledge = Knowledge(world)
    do(world, "open fridge_1")
    knowledge.update()
    do(world, "close fridge_1")
    facts = told(knowledge)
    assert facts.keys() == {"fridge_1", "apple_2", "egg_1"}
    assert facts["egg_1"].states == ("cold",)
    world.begin_task()
    assert told(knowledge)["egg_1"].states == ()


@pytest.mark.parametrize("observability", ["full", "partial"])
def test_a_cut_reports_what_is_gone_and_what_is_new(world: World, observability: str) -> None:
    knowledge = Knowledge(world, observability)
    do(world, "goto countertop_1", "pick knife_1")
    knowledge.update()
    do(world, "slice apple_1")
    facts = told(knowledge)
    assert facts["apple_1"].gone
    assert not knowledge.knows("apple_1")
    assert facts["applesliced_3"] == Fact(
        "applesliced_3", "object", "applesliced", place="countertop_1", states=("sliced",)
    )
    assert len(facts) == 5
    assert set(facts["agent"].sees) == {"plate_1", *(name for name in facts if name.startswith("applesliced"))}


def test_a_lamp_keeps_its_place_and_says_whether_it_is_on() -> None:
    world = World(bedroom())
    knowledge = Knowledge(world)
    assert told(knowledge)["desklamp_1"] == Fact(
        "desklamp_1", "receptacle", "desklamp", place="desk_1", states=("off",)
    )
    do(world, "turn_on desklamp_1")
    assert told(knowledge)["desklamp_1"].states == ("on",)


def test_a_running_microwave_says_so(world: World) -> None:
    knowledge = Knowledge(world)
    do(world, "turn_on microwave_1")
    assert told(knowledge)["microwave_1"].states == ("closed", "on")


def test_unknown_observability_is_an_error(world: World) -> None:
    with pytest.raises(ConfigError, match="'foggy' is unknown; use one of full, partial"):
        Knowledge(world, "foggy")  # type: ignore[arg-type]
