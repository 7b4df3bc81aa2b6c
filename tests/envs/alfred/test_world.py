"""Primitives of the symbolic world: effects and refusals; and the classes of objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.alfred import objects
from envs.alfred.objects import SLICES, accepts, lota_words, may_hold, name_of, whole_type
from envs.alfred.world import World
from keep_agent.errors import DataError, SkillError
from tests.envs.alfred.rooms import bedroom, do, inside, kitchen, place


def refusal(world: World, step: str) -> str:
    """Execute a primitive that must fail without any change, and return its message."""
    before = world.copy()
    name, *arguments = step.split()
    outcome = getattr(world, name)(*arguments)
    assert not outcome.ok and world == before
    return outcome.message


def test_a_hand_holds_one_thing(world: World) -> None:
    do(world, "pick knife_1")
    assert world.holding == "knife_1" and "knife_1" not in world["countertop_1"].contents
    assert refusal(world, "pick apple_1") == "you are already holding knife 1"


def test_closed_doors_hide_and_refuse(world: World) -> None:
    do(world, "close box_1")  # it starts open
    assert refusal(world, "pick pencil_1") == "pencil 1 is in box 1, which is closed"
    assert refusal(world, "pick apple_2") == "apple 2 is in fridge 1, which is closed"
    do(world, "pick apple_1")
    assert refusal(world, "put apple_1 fridge_1") == "fridge 1 is closed"
    do(world, "open fridge_1", "put apple_1 fridge_1")
    assert world["apple_1"].parent == "fridge_1" and world["apple_1"].position == world["fridge_1"].position


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ("open countertop_1", "countertop 1 cannot be opened"),
        ("close countertop_1", "countertop 1 cannot be closed"), ("close fridge_1", "fridge 1 is already closed"),
        ("pick countertop_1", "countertop 1 cannot be picked up"),
        ("put apple_1 countertop_1", "you are not holding apple 1"),
        ("slice apple_1", "you need a knife in your hand to slice"), ("slice plate_1", "plate 1 cannot be sliced"),
        ("turn_on fridge_1", "fridge 1 cannot be turned on"), ("turn_off faucet_1", "faucet 1 is already off"),
        ("drop", "you are not holding anything"),
    ],
)  # fmt: skip
def test_every_refusal_says_why(world: World, step: str, sentence: str) -> None:
    assert refusal(world, step) == sentence


def test_unknown_ids_are_an_error(world: World) -> None:
    with pytest.raises(SkillError, match="no 'cabinet_9' in scene kitchen"):
        world.goto("cabinet_9")


def test_containers_carry_their_content_and_never_nest(world: World) -> None:
    do(world, "pick box_1")
    assert world["pencil_1"].parent == "box_1"
    assert refusal(world, "goto pencil_1") == "pencil 1 is in box 1, which you are holding"
    assert refusal(world, "put box_1 plate_1") == "box 1 does not go in plate 1: no container goes in another"
    do(world, "put box_1 countertop_1")
    assert world["pencil_1"].position == world["countertop_1"].position
    assert world.place_of("pencil_1") == "countertop_1"


def test_a_burner_carries_one_thing_and_drops_land_where_the_agent_stands(world: World) -> None:
    do(world, "pick plate_1")
    assert refusal(world, "put plate_1 stoveburner_1") == "stoveburner 1 is occupied by pan 1"
    do(world, "put plate_1 stoveburner_2")
    do(world, "goto apple_1", "pick apple_1", "goto sinkbasin_1", "drop")
    apple = world["apple_1"]
    assert (apple.parent, apple.position) == (None, (-4, 0.0, 0)) and world.on_floor("apple_1")
    do(world, "goto apple_1", "pick apple_1")
    assert world.at is None, "the place is gone with the thing that lay there"


def test_slices_lie_where_the_whole_lay(world: World) -> None:
    do(world, "goto apple_1", "pick knife_1", "slice apple_1")
    slices = world.of_type("AppleSliced")
    assert slices == tuple(f"applesliced_{number}" for number in range(1, SLICES + 1))
    assert "apple_1" not in world.things and world.of_type("Apple") == ("apple_2",)
    assert set(slices) < set(world["countertop_1"].contents)
    do(world, "open fridge_1", "slice apple_2")
    assert world.of_type("AppleSliced")[SLICES:] == tuple(f"applesliced_{SLICES + n}" for n in range(1, SLICES + 1))
    do(world, "goto potato_1", "slice potato_1")
    assert world.at == "potatosliced_1", "a cut on the floor moves the agent's place to a slice"


def test_heat_needs_a_closed_microwave_and_reaches_nested_things(world: World) -> None:
    do(world, "pick apple_1", "put apple_1 plate_1", "pick plate_1", "open microwave_1", "put plate_1 microwave_1")
    assert refusal(world, "turn_on microwave_1") == "microwave 1 is open, close it first"
    do(world, "close microwave_1", "turn_on microwave_1")
    assert world.heated == {"plate_1", "apple_1"}
    assert refusal(world, "open microwave_1") == "microwave 1 is on, turn it off first"
    do(world, "turn_off microwave_1", "open microwave_1")


def test_a_fridge_cools_when_it_is_closed_and_a_faucet_cleans_when_it_starts(world: World) -> None:
    do(world, "open fridge_1")
    assert world.cooled == set()
    do(world, "close fridge_1")
    assert world.cooled == {"apple_2", "egg_1"}
    do(world, "turn_on faucet_1", "pick knife_1", "put knife_1 sinkbasin_1")
    assert world.cleaned == set()
    do(world, "turn_off faucet_1", "turn_on faucet_1")
    assert world.cleaned == {"knife_1"}
    bath = World(bedroom())
    do(bath, "pick cloth_1", "put cloth_1 bathtubbasin_1", "turn_on faucet_1")
    assert bath.cleaned == set(), "a bath's faucet cleans nothing"


def test_marks_stay_with_the_whole_and_end_with_the_task(world: World) -> None:
    do(world, "open fridge_1", "close fridge_1", "open fridge_1", "pick knife_1", "slice apple_2")
    assert not world.cooled & set(world.of_type("AppleSliced"))
    world.begin_task()
    assert (world.heated, world.cooled, world.cleaned) == (set(), set(), set()) and world.holding == "knife_1"


def test_the_agent_stands_at_the_nearest_point_where_lamps_and_faucets_are_near() -> None:
    world = World(bedroom())
    assert world["laptop_1"].is_open
    do(world, "pick laptop_1")
    assert not world["laptop_1"].is_open
    world = World(replace(kitchen(), reachable=((0.0, 1.0), (3.5, 1.0), (6.0, 2.0))))
    do(world, "goto apple_2")
    assert (world.agent.x, world.agent.z, world.at) == (3.5, 1.0, "fridge_1") and world.near("egg_1")
    assert not world.visible("egg_1")
    do(world, "open fridge_1")
    assert world.visible("egg_1")
    world = World(replace(bedroom(), reachable=((-3.0, 0.0), (9.0, 6.0))))
    do(world, "goto desk_1")
    assert world.near("desklamp_1") and not world.near("floorlamp_1")
    do(world, "goto bathtubbasin_1")
    assert world.near("faucet_1")


def test_a_copy_is_independent(world: World) -> None:
    copy = world.copy()
    assert copy == world
    do(copy, "goto knife_1", "pick knife_1", "slice apple_1", "open fridge_1", "close fridge_1")
    assert copy != world and world == World(kitchen()) and world.of_type("AppleSliced") == ()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (place("CounterTop", 1, 0, 0), "two things are called 'countertop_1'"),
        (place("Piano", 1, 0, 0), "unknown type 'Piano'"),
        (place("Pen", 1, 0, 0, parent="shelf_7"), "cannot start in 'shelf_7'"),
        (inside("Pen", 1, place("Faucet", 1, 0, 0)), "cannot start in 'faucet_1'"),
        (inside("Bowl", 1, place("Plate", 1, 0, 0)), "cannot start in 'plate_1'"),
    ],
)
def test_contradictory_scenes_are_refused(item: object, message: str) -> None:
    scene = kitchen()
    with pytest.raises(DataError, match=message):
        World(replace(scene, items=(*scene.items, item)))


@pytest.mark.parametrize(
    ("receptacle", "count"),
    [("CounterTop", 58), ("Bowl", 28), ("Fridge", 19), ("GarbageCan", 26), ("Shelf", 36), ("Sofa", 11), ("Pot", 16)],
)
def test_the_table_has_the_counted_number_of_types(receptacle: str, count: int) -> None:
    assert len(accepts(receptacle)) == count


def test_classes_and_names_are_consistent() -> None:
    assert len(objects.LOTA_PICKUPABLE) == 53
    assert objects.MOVABLE_RECEPTACLES <= objects.PICKUPABLE & objects.RECEPTACLES
    assert not objects.FIXTURES & objects.PICKUPABLE
    assert frozenset().union(*objects.ACCEPTED.values()) <= objects.PICKUPABLE
    treatable = objects.HEATABLE | objects.COOLABLE | objects.CLEANABLE
    assert treatable <= objects.PICKUPABLE
    assert (len(objects.HEATABLE), len(objects.COOLABLE), len(objects.CLEANABLE)) == (12, 18, 25)
    assert accepts("DeskLamp") == frozenset() and not may_hold("Apple", "Knife")
    assert "Mug" in accepts("Box") and not may_hold("Box", "Mug") and may_hold("Cabinet", "Mug")
    assert whole_type("AppleSliced") == "Apple" and whole_type("Plate") == "Plate"
    assert name_of("applesliced_2") == "applesliced 2"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("AlarmClock", "alarm clock"), ("CD", "CD"), ("SinkBasin", "sink"), ("TVStand", "tv stand"),
        ("Glassbottle", "glassbottle"), ("BathtubBasin", "bathtub"),
    ],
)  # fmt: skip
def test_lota_words(kind: str, words: str) -> None:
    assert lota_words(kind) == words
