"""The agent's knowledge: its content, its growth, and the resulting facts."""

from __future__ import annotations

import pytest

from envs.alfred.knowledge import Knowledge
from envs.alfred.world import World
from envs.fact import Fact
from keep_agent.errors import ConfigError
from tests.envs.alfred.rooms import bedroom, do


def changed_facts(knowledge: Knowledge) -> dict[str, Fact]:
    """Return the changed facts by id."""
    return {fact.id: fact for fact in knowledge.update()}


def test_full_knowledge_names_everything_once_and_partial_starts_with_furniture_and_the_floor(world: World) -> None:
    knowledge = Knowledge(world)
    facts = changed_facts(knowledge)
    assert facts.keys() == world.things.keys() | {"agent"}
    assert facts["apple_2"] == Fact("apple_2", "object", "apple", place="fridge_1")
    assert facts["fridge_1"] == Fact("fridge_1", "receptacle", "fridge", states=("closed",))
    assert facts["faucet_1"].states == ("off",) and facts["potato_1"].place == "floor"
    assert knowledge.update() == []
    facts = changed_facts(Knowledge(world, "partial"))
    objects = [fact.id for fact in facts.values() if fact.category == "object"]
    assert objects == ["potato_1"] and facts["countertop_1"].states == ("unseen",)
    assert facts["cabinet_1"].states == ("closed", "unseen") and facts["faucet_1"].states == ("off",)


def test_surfaces_are_seen_on_arrival_and_containers_when_opened(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    knowledge.update()
    do(world, "goto countertop_1")
    assert changed_facts(knowledge).keys() == {"countertop_1", "apple_1", "knife_1", "plate_1", "agent"}
    do(world, "goto fridge_1")
    assert changed_facts(knowledge).keys() == {"agent"}
    do(world, "open fridge_1")
    facts = changed_facts(knowledge)
    assert facts.keys() == {"fridge_1", "apple_2", "egg_1", "agent"} and facts["fridge_1"].states == ("open",)
    assert facts["agent"].sees == ("apple_2", "egg_1")


def test_content_is_seen_when_opened_from_a_neighbouring_place_and_in_open_boxes_only(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    knowledge.update()
    do(world, "goto cabinet_2", "open cabinet_1")
    knowledge.update()
    assert knowledge.knows("mug_1") and not knowledge.is_unseen("cabinet_1") and knowledge.is_unseen("cabinet_2")
    knowledge = Knowledge(world, "partial")
    do(world, "close box_1", "goto countertop_2")
    facts = changed_facts(knowledge)
    assert facts["box_1"].states == ("closed",) and "pencil_1" not in facts
    do(world, "open box_1")
    facts = changed_facts(knowledge)
    assert facts["box_1"].states == () and facts["pencil_1"].place == "box_1"


def test_the_agent_fact_lists_visible_objects(world: World) -> None:
    knowledge = Knowledge(world)
    for action, visible in (
        ("goto fridge_1", ()),
        ("open fridge_1", ("apple_2", "egg_1")),
        ("pick egg_1", ("apple_2",)),
        ("goto potato_1", ("potato_1",)),
    ):
        do(world, action)
        assert changed_facts(knowledge)["agent"].sees == visible


def test_knowledge_persists_after_leaving_and_carrying_changes_two_facts(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    do(world, "goto countertop_1")
    knowledge.update()
    do(world, "goto fridge_1")
    assert knowledge.update() == [Fact("agent", "agent", "agent", place="fridge_1")]
    assert knowledge.facts["apple_1"].place == "countertop_1"
    knowledge = Knowledge(world)
    knowledge.update()
    do(world, "pick potato_1")
    facts = changed_facts(knowledge)
    assert facts.keys() == {"potato_1", "agent"} and facts["potato_1"].place == "agent"
    assert facts["agent"].holds == "potato_1"
    do(world, "drop")
    assert changed_facts(knowledge)["potato_1"].place == "floor"


def test_marks_appear_and_end_with_the_task(world: World) -> None:
    knowledge = Knowledge(world)
    do(world, "open fridge_1")
    knowledge.update()
    do(world, "close fridge_1")
    facts = changed_facts(knowledge)
    assert facts.keys() == {"fridge_1", "apple_2", "egg_1"} and facts["egg_1"].states == ("cold",)
    world.begin_task()
    assert changed_facts(knowledge)["egg_1"].states == ()


@pytest.mark.parametrize("observability", ["full", "partial"])
def test_a_cut_reports_removed_and_new_things(world: World, observability: str) -> None:
    knowledge = Knowledge(world, observability)
    do(world, "goto countertop_1", "pick knife_1")
    knowledge.update()
    do(world, "slice apple_1")
    facts = changed_facts(knowledge)
    assert facts["apple_1"].gone and not knowledge.knows("apple_1")
    assert facts["applesliced_3"] == Fact("applesliced_3", "object", "applesliced", "countertop_1", states=("sliced",))
    assert len(facts) == 5
    assert set(facts["agent"].sees) == {"plate_1", *(name for name in facts if name.startswith("applesliced"))}


def test_a_lamp_has_a_place_and_an_on_state_and_so_has_a_microwave(world: World) -> None:
    do(world, "turn_on microwave_1")
    assert changed_facts(Knowledge(world))["microwave_1"].states == ("closed", "on")
    room = World(bedroom())
    knowledge = Knowledge(room)
    assert changed_facts(knowledge)["desklamp_1"] == Fact(
        "desklamp_1", "receptacle", "desklamp", "desk_1", None, ("off",)
    )
    do(room, "turn_on desklamp_1")
    assert changed_facts(knowledge)["desklamp_1"].states == ("on",)


def test_unknown_observability_is_an_error(world: World) -> None:
    with pytest.raises(ConfigError, match="'foggy' is unknown; use one of full, partial"):
        Knowledge(world, "foggy")  # type: ignore[arg-type]
