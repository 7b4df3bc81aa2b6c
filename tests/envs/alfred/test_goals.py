"""Goal conditions with partial credit, task type by task type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.alfred.goals import TASK_TYPES, Matching, goal_conditions, goal_met
from envs.alfred.scene import Task
from envs.alfred.world import World
from keep_agent.errors import ConfigError, DataError
from tests.envs.alfred.rooms import bedroom, do, inside, kitchen

HEAT = Task("pick_heat_then_place_in_recep", "Apple", "CounterTop")
COOL = Task("pick_cool_then_place_in_recep", "Egg", "CounterTop")
CLEAN = Task("pick_clean_then_place_in_recep", "Knife", "Drawer")
NEST = Task("pick_and_place_with_movable_recep", "Knife", "CounterTop", mrecep_target="Plate")
TWO = Task("pick_two_obj_and_place", "Book", "Shelf")
LOOK = Task("look_at_obj_in_light", "Book", toggle_target="DeskLamp")


def progress(world: World, task: Task, *steps: str) -> list[int]:
    """Return the conditions met at the start and after each step."""
    met = [goal_conditions(world, task)[0]]
    for step in steps:
        do(world, step)
        met.append(goal_conditions(world, task)[0])
    return met


def test_simple_placing() -> None:
    task = Task("pick_and_place_simple", "Potato", "CounterTop")
    assert progress(World(kitchen()), task, "pick potato_1", "put potato_1 countertop_2") == [0, 0, 1]
    assert len(TASK_TYPES) == 7


def test_treatments_count_another_object_in_place_but_want_the_same_one() -> None:
    world = World(kitchen())
    do(world, "open fridge_1", "pick apple_2", "open microwave_1", "put apple_2 microwave_1", "close microwave_1")
    assert progress(world, HEAT, "turn_on microwave_1", "turn_off microwave_1") == [1, 2, 2]
    do(world, "open microwave_1", "pick apple_2", "put apple_2 countertop_2")
    assert goal_met(world, HEAT)
    steps = ("open fridge_1", "close fridge_1", "open fridge_1", "pick egg_1", "put egg_1 countertop_1")
    assert progress(World(kitchen()), COOL, *steps) == [0, 0, 1, 1, 1, 3]
    steps = ("pick knife_1", "put knife_1 sinkbasin_1", "turn_on faucet_1", "pick knife_1", "open drawer_1")
    assert progress(World(kitchen()), CLEAN, *steps, "put knife_1 drawer_1") == [0, 0, 0, 1, 1, 1, 3]


def test_movable_receptacles_are_filled_and_placed_and_two_objects_share_one() -> None:
    world = World(kitchen())
    assert goal_conditions(world, NEST) == (1, 3)  # the plate is on a counter
    assert progress(world, NEST, "pick knife_1", "put knife_1 plate_1", "pick plate_1") == [1, 1, 3, 1]
    world = World(bedroom())
    assert progress(world, TWO, "pick book_1", "put book_1 shelf_2") == [1, 1, 1]
    assert progress(world, TWO, "pick book_2", "put book_2 shelf_2") == [1, 1, 2]


def test_looking_needs_the_object_in_hand_and_a_lit_lamp_in_sight() -> None:
    world = World(bedroom())
    do(world, "goto desk_1")
    assert progress(world, LOOK, "pick book_1", "turn_on desklamp_1") == [0, 1, 2]
    do(world, "goto shelf_1")
    assert goal_conditions(world, LOOK) == (1, 2)


def test_a_sliced_task_has_the_cut_as_a_condition_which_loses_marks() -> None:
    world = World(kitchen())
    task = replace(HEAT, sliced=True)
    assert goal_conditions(world, task) == (0, 4)  # the whole apple on the counter does not count
    do(world, "pick knife_1", "slice apple_1")
    assert goal_conditions(world, task) == (2, 4)  # cut, and a slice lies on the counter
    two = Task("pick_two_obj_and_place", "Apple", "CounterTop", sliced=True)
    assert goal_conditions(world, two) == (4, 4)  # two slices are two conditions
    world = World(kitchen())
    task = Task("pick_cool_then_place_in_recep", "Apple", "Fridge", sliced=True)
    do(world, "open fridge_1", "close fridge_1", "open fridge_1", "pick knife_1", "slice apple_2")
    assert goal_conditions(world, task) == (2, 4)
    do(world, "close fridge_1")
    assert goal_met(world, task)


@pytest.mark.parametrize(("matching", "met"), [("type", 0), ("official", 1)])
def test_official_matching_takes_a_tissue_box_for_a_box_and_a_slice_for_the_whole(matching: Matching, met: int) -> None:
    """Official matching also searches for the name in the official id, as for Atlas."""
    scene, world = bedroom(), World(kitchen())
    book = replace(inside("Book", 4, scene.items[1]), source="Book|+05.00|+00.90|+00.00|Atlas")
    room = World(replace(scene, items=(*scene.items, book)))
    do(world, "open fridge_1", "pick knife_1", "slice apple_2")
    for place, kind, parent in ((room, "Box", "Shelf"), (world, "Apple", "Fridge"), (room, "Atlas", "Shelf")):
        assert goal_conditions(place, Task("pick_and_place_simple", kind, parent), matching) == (met, 1), kind


def test_bad_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="'loose' is unknown"):
        goal_conditions(World(kitchen()), HEAT, "loose")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="unknown type 'stack'"):
        goal_conditions(World(kitchen()), Task("stack", "Apple"))
