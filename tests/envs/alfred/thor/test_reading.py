"""From metadata to things: types, names, places, doors, and what stays the same object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.alfred.scene import Item
from envs.alfred.thing import Thing
from envs.alfred.thor.reading import Names, thing_in_hand, kind_of, read_things
from tests.envs.alfred.thor.entries import entry, thing

FRIDGE, COUNTER, BOWL = "Fridge|-01.00|+00.00|+02.00", "CounterTop|+01.00|+00.90|+00.00", "Bowl|+01.10|+00.95|+00.20"
APPLE, BOTTLE = "Apple|+01.10|+01.00|+00.20", "Bottle|-01.00|+01.00|+02.00"


def room() -> list[dict[str, Any]]:
    return [
        entry("Floor|+00.00|+00.00|+00.00", receptacleObjectIds=[BOWL]),
        entry(FRIDGE, openable=True),
        entry(COUNTER),
        thing(APPLE, COUNTER, BOWL),
        thing(BOWL, COUNTER),
        thing(BOTTLE, FRIDGE),
        thing("Pen|+03.00|+00.00|+03.00", "Floor|+00.00|+00.00|+00.00"),
    ]


def named(entries: list[dict[str, Any]], *items: Item) -> Names:
    names = Names()
    names.begin(entries, items)
    return names


def read(listed: list[dict[str, Any]], names: Names, before: Mapping[str, Thing]) -> dict[str, Thing]:
    return read_things(names.entries(listed), names, before)


def test_places_and_types() -> None:
    things = read(room(), named(room()), {})
    assert {one.id: one.parent for one in things.values()} == {
        "fridge_1": None,
        "countertop_1": None,
        "apple_1": "bowl_1",  # the innermost of two
        "bowl_1": "countertop_1",
        "glassbottle_1": "fridge_1",  # as ALFRED calls a bottle
        "pen_1": None,  # on the floor
    }
    assert things["bowl_1"].contents == ("apple_1",) and things["fridge_1"].shut
    assert things["apple_1"].source == APPLE


def test_the_nearest_of_a_type_has_the_name_of_the_description() -> None:
    far, near, third = (f"Mug|+0{x:.2f}|+01.00|+00.00" for x in (4, 0.05, 9))
    items = [Item("mug_2", "Mug", (0.0, 1.0, 0.0)), Item("mug_1", "Mug", (5.0, 1.0, 0.0))]
    names = named([thing(far), thing(near), thing(third)], *items)
    assert names.thing_ids == {near: "mug_2", far: "mug_1", third: "mug_3"}
    assert names.object_id("mug_1") == far


def test_two_in_the_same_place_get_a_name_each() -> None:
    first, second = "Egg|+00.00|+01.00|+00.00", "Egg|+00.01|+01.00|+00.00"
    names = named([thing(first), thing(second)], *(Item(f"egg_{n}", "Egg", (0.0, 1.0, 0.0)) for n in (1, 2)))
    assert sorted(names.thing_ids.values()) == ["egg_1", "egg_2"]


def test_what_did_not_change_is_the_same_object() -> None:
    names = named(room())
    before = read(room(), names, {})
    moved = [one | {"parentReceptacles": [COUNTER]} if one["objectId"] == BOTTLE else one for one in room()]
    after = read(moved, names, before)
    assert after["glassbottle_1"].parent == "countertop_1"
    assert after["countertop_1"].contents == ("bowl_1", "glassbottle_1")  # what was there comes first
    assert {one for one in after if after[one] is not before[one]} == {"glassbottle_1", "fridge_1", "countertop_1"}
    assert list(after) == list(before)


def test_a_cut_thing_is_gone_and_its_slices_are_new() -> None:
    names = named(room())
    before = read(room(), names, {})
    cut = [one | {"isSliced": True} if one["objectId"] == APPLE else one for one in room()]
    slices = [thing(f"{APPLE}|AppleSliced_{number}", COUNTER, kind="AppleSliced") for number in range(2)]
    after = read([*cut, *slices], names, before)
    assert "apple_1" not in after and list(after)[-2:] == ["applesliced_1", "applesliced_2"]
    assert kind_of(slices[0]) == "AppleSliced"


def test_what_is_in_a_carried_container_stays_there_until_it_touches_something_else() -> None:
    """The simulator names no receptacle for it meanwhile, nor where a pan is put on a burner."""
    names = named(room())
    before = read(room(), names, {})
    hand = {"x": 0.0, "y": 1.3, "z": 0.5}
    carried = {BOWL: {"isPickedUp": True, "position": hand}, APPLE: {"parentReceptacles": None, "position": hand}}
    lifted = [one | carried.get(one["objectId"], {}) for one in room()]
    things = read(lifted, names, before)
    assert things["apple_1"].parent == "bowl_1" and things["bowl_1"].contents == ("apple_1",)
    assert read(lifted, names, things)["apple_1"].parent == "bowl_1"
    spilled = [one | ({"position": {"x": 2, "y": 0, "z": 2}} if one["objectId"] == APPLE else {}) for one in lifted]
    assert read(spilled, names, things)["apple_1"].parent is None
    taken = [one | ({"isPickedUp": True} if one["objectId"] == APPLE else {}) for one in lifted]
    assert read(taken, names, things)["apple_1"].parent is None


def test_containers_that_touch_are_not_in_each_other() -> None:
    box, plate = "Box|+01.00|+01.00|+00.00", "Plate|+01.10|+01.00|+00.00"
    found = [thing(box, COUNTER, plate), thing(plate, COUNTER, box), entry(COUNTER), thing(APPLE, plate, COUNTER)]
    things = read(found, named(found), {})
    assert (
        things["box_1"].parent == things["plate_1"].parent == "countertop_1" and things["apple_1"].parent == "plate_1"
    )


def test_shards_are_no_things() -> None:
    mug, laptop = "Mug|+01.00|+01.00|+00.00", "Laptop|+01.00|+01.00|+00.00"
    found = [thing(mug, isBroken=True), thing(laptop, isBroken=True)]
    assert list(read(found, named(found), {})) == ["laptop_1"]


def test_what_is_in_the_hand_is_nowhere_else() -> None:
    names = named(room())
    lifted = [one | {"isPickedUp": True} if one["objectId"] == BOWL else one for one in room()]
    things = read(lifted, names, {})
    assert things["bowl_1"].parent is None and things["apple_1"].parent == "bowl_1"
    assert thing_in_hand({"inventoryObjects": [{"objectId": BOWL, "objectType": "Bowl"}]}, names) == "bowl_1"
    assert thing_in_hand({"inventoryObjects": []}, names) is None


def test_a_container_without_a_door_hides_nothing() -> None:
    cabinet = "Cabinet|+00.00|+01.00|+00.00"
    things = read([entry(cabinet)], named([entry(cabinet)]), {})
    assert not things["cabinet_1"].shut
    basin = "Sink|+00.00|+01.00|+00.00|SinkBasin"
    found = [entry(basin, "SinkBasin"), entry("Sink|+00.00|+01.00|+00.00")]
    assert list(read(found, named(found), {})) == ["sinkbasin_1"]
