"""LoTA-Bench's skills: catalogue, instance choice, messages, and the documented deviations from LoTA-Bench."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from envs.alfred.goals import goal_met
from envs.alfred.lota import LOTA_SKILLS, LotaSkills
from envs.alfred.scene import Task
from envs.alfred.world import World
from envs.outcome import failed
from keep_agent.errors import SkillError
from tests.envs.alfred.rooms import bedroom, do, execute

LOTA = LotaSkills()
run = partial(execute, LOTA)


def refusal(world: World, skill: str) -> str:
    outcome = LOTA.execute(world, skill)
    assert not outcome.ok
    return outcome.message


def test_the_catalogue_is_lota_benchs() -> None:
    assert len(LOTA_SKILLS) == len(set(LOTA_SKILLS)) == 214
    verbs = Counter(" ".join(skill.split(" ")[:2]) for skill in LOTA_SKILLS)
    assert verbs["find a"] + verbs["find an"] == 80 and verbs["pick up"] == verbs["put down"] == 53
    assert verbs["open the"] == verbs["close the"] == 7 and verbs["turn on"] == verbs["turn off"] == 4
    assert verbs["slice the"] == 5
    expected = {
        "done", "find an alarm clock", "find a sink", "pick up the CD", "turn on the desk lamp", "open the laptop",
    }  # fmt: skip
    assert expected <= set(LOTA_SKILLS)


def test_all_skills_are_admissible_done_does_nothing_and_unknown_ones_are_errors(world: World) -> None:
    with pytest.raises(SkillError, match="unknown skill 'find a aple'; did you mean 'find an apple'"):
        LOTA.execute(world, "find a aple")
    before = world.copy()
    assert LOTA.admissible(world) == LOTA_SKILLS
    run(world, "done")
    assert world == before


def test_find_prefers_instances_not_behind_a_door_and_free_burners(world: World) -> None:
    do(world, "goto fridge_1")
    assert LOTA.choose(world, "find an apple") == "apple_1"
    run(world, "open the fridge")
    assert LOTA.choose(world, "find an apple") == "apple_2"
    do(world, "goto stoveburner_1")
    assert LOTA.choose(world, "find a stove burner") == "stoveburner_2"


def test_find_teleports_to_the_container_of_a_hidden_object(world: World) -> None:
    run(world, "find a mug")
    assert world.at == "cabinet_1"
    assert refusal(world, "pick up the mug") == "Mug is not visible because it is in Cabinet"
    run(world, "open the cabinet", "pick up the mug")


def test_messages_are_lota_benchs(world: World) -> None:
    for skill, message in {
        "find a vase": "Cannot find Vase",
        "pick up the vase": "Cannot find Vase to pick up",
        "open the safe": "Cannot find Safe to open",
        "slice the bread": "Cannot find Bread to slice",
        "put down the apple": "Robot is not holding any object",
        "open the fridge": "Open action failed: Fridge is too far away",
    }.items():
        assert refusal(world, skill) == message
    run(world, "find an apple")
    assert refusal(world, "slice the apple") == "Slice action failed: you need a knife in your hand to slice"
    run(world, "pick up the apple")
    for skill in ("pick up the knife", "put down the knife"):
        assert refusal(world, skill) == "Robot is currently holding Apple"
    do(world, "drop", "goto sinkbasin_1")
    assert refusal(world, "pick up the knife") == "Knife is not visible because it is in CounterTop"
    assert refusal(world, "pick up the potato") == "Potato is not visible because it is far away"


def test_a_failed_put_drops_the_object(world: World) -> None:
    run(world, "find an apple", "pick up the apple", "find a fridge")
    message = refusal(world, "put down the apple")
    assert message == "put down failed because fridge 1 is closed, so Apple fell on the floor"
    assert world.on_floor("apple_1")


def test_an_object_that_cannot_be_dropped_stays_in_the_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """AI2-THOR may refuse both the put and the drop."""
    run(world, "find an apple", "pick up the apple", "find a fridge")
    monkeypatch.setattr(World, "drop", lambda world: failed("no room to drop it"))
    message = refusal(world, "put down the apple")
    assert message == "put down failed because fridge 1 is closed, and Apple is still held: no room to drop it"
    assert world.holding == "apple_1"


def test_a_receptacle_of_an_earlier_put_may_have_vanished(world: World) -> None:
    """A broken bowl is missing from AI2-THOR's replies."""
    world.history = replace(world.history, put_receptacles=("bowl_9",))
    run(world, "find an apple", "pick up the apple")


def test_without_a_target_put_down_drops(world: World) -> None:
    run(world, "find an apple", "pick up the apple", "put down the apple")
    assert world.on_floor("apple_1")


def test_the_target_lasts_until_the_next_find(world: World) -> None:
    run(world, "find an apple", "pick up the apple", "find a microwave", "open the microwave", "put down the apple")
    run(world, "close the microwave", "turn on the microwave", "turn off the microwave", "open the microwave")
    run(world, "pick up the apple", "put down the apple")
    assert world["apple_1"].parent == "microwave_1"


def test_pick_up_prefers_objects_in_the_target_and_open_the_container_that_hides_it(world: World) -> None:
    do(world, "open fridge_1")
    run(world, "find a fridge", "pick up the apple")
    assert world.holding == "apple_2"
    do(world, "goto cabinet_2")
    run(world, "find a mug", "open the cabinet")
    assert world["cabinet_1"].is_open


def test_open_again_reaches_the_next_drawer_and_close_the_open_one(world: World) -> None:
    run(world, "find a drawer", "open the drawer", "open the drawer")
    assert world["drawer_1"].is_open and world["drawer_2"].is_open
    run(world, "close the drawer", "close the drawer")
    assert not world["drawer_1"].is_open and not world["drawer_2"].is_open
    assert refusal(world, "close the drawer") == "Close action failed: drawer 2 is already closed"


def test_a_repeated_find_reaches_the_next_instance(world: World) -> None:
    places = []
    for _ in range(3):
        run(world, "find a drawer")
        places.append(world.at)
    assert set(places[:2]) == {"drawer_1", "drawer_2"} and places[2] == places[0]
    run(world, "open the drawer", "find a drawer")
    assert world.at == places[0], "another skill in between starts over"


def test_slices_come_first_after_a_cut_in_this_task(world: World) -> None:
    run(world, "find a knife", "pick up the knife", "find an apple", "slice the apple")
    do(world, "open fridge_1", "goto fridge_1")
    assert LOTA.choose(world, "find an apple").startswith("applesliced")
    world.begin_task()
    assert LOTA.choose(world, "find an apple") == "apple_2"


def test_find_prefers_the_cleaned_object(world: World) -> None:
    run(world, "find an apple", "pick up the apple", "find a sink", "put down the apple", "find a faucet")
    run(world, "turn on the faucet", "turn off the faucet", "find an apple", "pick up the apple")
    assert world.holding == "apple_1" and world.cleaned == {"apple_1"}


def test_turn_on_prefers_the_faucet_of_the_target_sink_and_two_objects_reach_a_shelf() -> None:
    world = World(bedroom())
    run(world, "find a bathtub")
    assert LOTA.choose(world, "turn on the faucet") == "faucet_1"
    run(world, "turn on the faucet")
    world = World(bedroom())
    for _ in range(2):
        run(world, "find a book", "pick up the book", "find a shelf", "put down the book")
    assert goal_met(world, Task("pick_two_obj_and_place", "Book", "Shelf"))
