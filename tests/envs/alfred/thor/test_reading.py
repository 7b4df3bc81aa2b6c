"""Things read from metadata: types, ids, places, doors, and objects that stay the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.alfred.scene import Item
from envs.alfred.state import Thing
from envs.alfred.thor.reading import Names, kind_of, read_things, thing_in_hand
from tests.envs.alfred.thor.entries import entry, thing

FRIDGE, COUNTER, BOWL = "Fridge|-01.00|+00.00|+02.00", "CounterTop|+01.00|+00.90|+00.00", "Bowl|+01.10|+00.95|+00.20"
APPLE, BOTTLE = "Apple|+01.10|+01.00|+00.20", "Bottle|-01.00|+01.00|+02.00"


def room() -> list[dict[str, Any]]:
    return [
        entry("Floor|+00.00|+00.00|+00.00", receptacleObjectIds=[BOWL]), entry(FRIDGE, openable=True), entry(COUNTER),
        thing(APPLE, COUNTER, BOWL), thing(BOWL, COUNTER), thing(BOTTLE, FRIDGE),
        thing("Pen|+03.00|+00.00|+03.00", "Floor|+00.00|+00.00|+00.00"),
    ]  # fmt: skip


def names_of(entries: list[dict[str, Any]], *items: Item) -> Names:
    names = Names()
    names.begin(entries, items)
    return names


def read(entries: list[dict[str, Any]], names: Names, before: Mapping[str, Thing]) -> dict[str, Thing]:
    return read_things(names.entries(entries), names, before)


def test_places_and_types() -> None:
    things = read(room(), names_of(room()), {})
    assert {thing.id: thing.parent for thing in things.values()} == {
        "fridge_1": None,
        "countertop_1": None,
        "apple_1": "bowl_1",  # the innermost of two
        "bowl_1": "countertop_1",
        "glassbottle_1": "fridge_1",  # ALFRED's name of a bottle
        "pen_1": None,  # on the floor
    }
    assert things["bowl_1"].contents == ("apple_1",) and things["fridge_1"].shut
    assert things["apple_1"].source == APPLE


def test_the_nearest_instance_gets_the_described_name() -> None:
    far, near, third = (f"Mug|+0{x:.2f}|+01.00|+00.00" for x in (4, 0.05, 9))
    items = [Item("mug_2", "Mug", (0.0, 1.0, 0.0)), Item("mug_1", "Mug", (5.0, 1.0, 0.0))]
    names = names_of([thing(far), thing(near), thing(third)], *items)
    assert names.thing_ids == {near: "mug_2", far: "mug_1", third: "mug_3"} and names.object_id("mug_1") == far


def test_two_things_in_the_same_place_get_different_names() -> None:
    first, second = "Egg|+00.00|+01.00|+00.00", "Egg|+00.01|+01.00|+00.00"
    names = names_of([thing(first), thing(second)], *(Item(f"egg_{n}", "Egg", (0.0, 1.0, 0.0)) for n in (1, 2)))
    assert sorted(names.thing_ids.values()) == ["egg_1", "egg_2"]


def test_unchanged_things_are_the_same_objects() -> None:
    names = names_of(room())
    before = read(room(), names, {})
    entries = [entry | {"parentReceptacles": [COUNTER]} if entry["objectId"] == BOTTLE else entry for entry in room()]
    after = read(entries, names, before)
    assert after["glassbottle_1"].parent == "countertop_1"
    assert after["countertop_1"].contents == ("bowl_1", "glassbottle_1")  # earlier contents come first
    changed = {name for name in after if after[name] is not before[name]}
    assert changed == {"glassbottle_1", "fridge_1", "countertop_1"} and list(after) == list(before)


def test_slices_replace_a_cut_thing_and_broken_things_are_left_out() -> None:
    entries = [thing(f"{kind}|+01.00|+01.00|+00.00", isBroken=True) for kind in ("Mug", "Laptop")]
    assert list(read(entries, names_of(entries), {})) == ["laptop_1"]
    names = names_of(room())
    before = read(room(), names, {})
    cut = [entry | {"isSliced": True} if entry["objectId"] == APPLE else entry for entry in room()]
    slices = [thing(f"{APPLE}|AppleSliced_{number}", COUNTER, kind="AppleSliced") for number in range(2)]
    after = read([*cut, *slices], names, before)
    assert "apple_1" not in after and list(after)[-2:] == ["applesliced_1", "applesliced_2"]
    assert kind_of(slices[0]) == "AppleSliced"


def test_contents_of_a_carried_container_stay_in_it_until_they_touch_something_else() -> None:
    """The simulator lists no receptacle for them, nor for the contents of a pan on a burner."""
    names = names_of(room())
    before = read(room(), names, {})
    hand = {"x": 0.0, "y": 1.3, "z": 0.5}
    changes = {BOWL: {"isPickedUp": True, "position": hand}, APPLE: {"parentReceptacles": None, "position": hand}}
    lifted = [entry | changes.get(entry["objectId"], {}) for entry in room()]
    things = read(lifted, names, before)
    assert things["apple_1"].parent == "bowl_1" and things["bowl_1"].contents == ("apple_1",)
    assert read(lifted, names, things)["apple_1"].parent == "bowl_1"
    for change in ({"position": {"x": 2, "y": 0, "z": 2}}, {"isPickedUp": True}):  # spilled, or in the hand
        entries = [entry | (change if entry["objectId"] == APPLE else {}) for entry in lifted]
        assert read(entries, names, things)["apple_1"].parent is None


def test_containers_that_touch_are_not_in_each_other() -> None:
    box, plate = "Box|+01.00|+01.00|+00.00", "Plate|+01.10|+01.00|+00.00"
    entries = [thing(box, COUNTER, plate), thing(plate, COUNTER, box), entry(COUNTER), thing(APPLE, plate, COUNTER)]
    things = read(entries, names_of(entries), {})
    parents = [things[name].parent for name in ("box_1", "plate_1", "apple_1")]
    assert parents == ["countertop_1", "countertop_1", "plate_1"]


def test_a_thing_in_the_hand_has_no_parent() -> None:
    names = names_of(room())
    lifted = [entry | {"isPickedUp": True} if entry["objectId"] == BOWL else entry for entry in room()]
    things = read(lifted, names, {})
    assert things["bowl_1"].parent is None and things["apple_1"].parent == "bowl_1"
    assert thing_in_hand({"inventoryObjects": [{"objectId": BOWL, "objectType": "Bowl"}]}, names) == "bowl_1"
    assert thing_in_hand({"inventoryObjects": []}, names) is None


def test_a_container_without_a_door_hides_nothing() -> None:
    cabinet = "Cabinet|+00.00|+01.00|+00.00"
    things = read([entry(cabinet)], names_of([entry(cabinet)]), {})
    assert not things["cabinet_1"].shut
    basin = "Sink|+00.00|+01.00|+00.00|SinkBasin"
    entries = [entry(basin, "SinkBasin"), entry("Sink|+00.00|+01.00|+00.00")]
    assert list(read(entries, names_of(entries), {})) == ["sinkbasin_1"]
