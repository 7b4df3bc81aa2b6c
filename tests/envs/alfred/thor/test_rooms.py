"""Rooms of AI2-THOR: things read from metadata, starts of ALFRED's trials, and poses from which a thing can be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import pytest

from envs.alfred.scene import Item, ObjectPose, Start
from envs.alfred.state import Thing
from envs.alfred.thor.client import Reply
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.poses import MAX_POINTS, Pose, PoseFinder
from envs.alfred.thor.reading import ThingIds, kind_of, read_things, thing_in_hand
from envs.alfred.thor.restore import RestoreReport, misplaced_types, object_poses, state_actions


def entry(object_id: str, kind: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return an object of the type and at the position in its id."""
    first, x, y, z = object_id.split("|")[:4]
    base = {
        "objectId": object_id,
        "objectType": kind or first,
        "name": f"{kind or first}_{crc32(object_id.encode()):08x}",
        "position": {"x": float(x), "y": float(y), "z": float(z)},
        "rotation": {"x": 0.0, "y": 0.0, "z": 0.0},
        "visible": False, "pickupable": False, "isPickedUp": False, "moveable": False, "openable": False,
        "isOpen": False, "toggleable": False, "isToggled": False, "isSliced": False, "dirtyable": False,
        "isDirty": False, "canFillWithLiquid": False, "isFilledWithLiquid": False, "parentReceptacles": None,
        "receptacleObjectIds": None,
    }  # fmt: skip
    return base | changes


def thing(object_id: str, *parents: str, **changes: Any) -> dict[str, Any]:
    """Return an object that can be picked up, in or on ``parents``."""
    return entry(object_id, pickupable=True, parentReceptacles=list(parents) or None, **changes)


FRIDGE, COUNTER, BOWL = "Fridge|-01.00|+00.00|+02.00", "CounterTop|+01.00|+00.90|+00.00", "Bowl|+01.10|+00.95|+00.20"
APPLE, BOTTLE = "Apple|+01.10|+01.00|+00.20", "Bottle|-01.00|+01.00|+02.00"


def room() -> list[dict[str, Any]]:
    return [
        entry("Floor|+00.00|+00.00|+00.00", receptacleObjectIds=[BOWL]), entry(FRIDGE, openable=True), entry(COUNTER),
        thing(APPLE, COUNTER, BOWL), thing(BOWL, COUNTER), thing(BOTTLE, FRIDGE),
        thing("Pen|+03.00|+00.00|+03.00", "Floor|+00.00|+00.00|+00.00"),
    ]  # fmt: skip


def names_of(entries: list[dict[str, Any]], *items: Item) -> ThingIds:
    names = ThingIds()
    names.begin(entries, items)
    return names


def read(entries: list[dict[str, Any]], names: ThingIds, before: Mapping[str, Thing]) -> dict[str, Thing]:
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
    assert things["bowl_1"].contents == ("apple_1",) and things["fridge_1"].closed
    assert things["apple_1"].source == APPLE


def test_the_nearest_instance_gets_the_described_name_and_names_differ() -> None:
    far, near, third = (f"Mug|+0{x:.2f}|+01.00|+00.00" for x in (4, 0.05, 9))
    items = [Item("mug_2", "Mug", (0.0, 1.0, 0.0)), Item("mug_1", "Mug", (5.0, 1.0, 0.0))]
    names = names_of([thing(far), thing(near), thing(third)], *items)
    assert names.thing_ids == {near: "mug_2", far: "mug_1", third: "mug_3"} and names.object_id("mug_1") == far
    first, second = "Egg|+00.00|+01.00|+00.00", "Egg|+00.01|+01.00|+00.00"
    names = names_of([thing(first), thing(second)], *(Item(f"egg_{n}", "Egg", (0.0, 1.0, 0.0)) for n in (1, 2)))
    assert sorted(names.thing_ids.values()) == ["egg_1", "egg_2"]


def test_unchanged_things_are_the_same_slices_replace_cut_ones_and_broken_ones_are_left_out() -> None:
    names = names_of(room())
    before = read(room(), names, {})
    entries = [entry | {"parentReceptacles": [COUNTER]} if entry["objectId"] == BOTTLE else entry for entry in room()]
    after = read(entries, names, before)
    assert after["glassbottle_1"].parent == "countertop_1"
    assert after["countertop_1"].contents == ("bowl_1", "glassbottle_1")  # earlier contents come first
    changed = {name for name in after if after[name] is not before[name]}
    assert changed == {"glassbottle_1", "fridge_1", "countertop_1"} and list(after) == list(before)
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


def test_touching_containers_are_not_in_each_other_and_without_a_door_hide_nothing() -> None:
    box, plate = "Box|+01.00|+01.00|+00.00", "Plate|+01.10|+01.00|+00.00"
    entries = [thing(box, COUNTER, plate), thing(plate, COUNTER, box), entry(COUNTER), thing(APPLE, plate, COUNTER)]
    things = read(entries, names_of(entries), {})
    parents = [things[name].parent for name in ("box_1", "plate_1", "apple_1")]
    assert parents == ["countertop_1", "countertop_1", "plate_1"]
    cabinet = "Cabinet|+00.00|+01.00|+00.00"
    things = read([entry(cabinet)], names_of([entry(cabinet)]), {})
    assert not things["cabinet_1"].closed
    basin = "Sink|+00.00|+01.00|+00.00|SinkBasin"
    entries = [entry(basin, "SinkBasin"), entry("Sink|+00.00|+01.00|+00.00")]
    assert list(read(entries, names_of(entries), {})) == ["sinkbasin_1"]


def test_a_thing_in_the_hand_has_no_parent() -> None:
    names = names_of(room())
    lifted = [entry | {"isPickedUp": True} if entry["objectId"] == BOWL else entry for entry in room()]
    things = read(lifted, names, {})
    assert things["bowl_1"].parent is None and things["apple_1"].parent == "bowl_1"
    assert thing_in_hand({"inventoryObjects": [{"objectId": BOWL, "objectType": "Bowl"}]}, names) == "bowl_1"
    assert thing_in_hand({"inventoryObjects": []}, names) is None


MUG, PEN, CHAIR = "Mug|+01.00|+01.00|+00.00", "Pen|+02.00|+01.00|+00.00", "Chair|+03.00|+00.00|+00.00"
NOWHERE = (0.0, 0.0, 0.0)


def pose(name: str, x: float) -> ObjectPose:
    return ObjectPose(name, (x, 1.0, 0.0), (0.0, 90.0, 0.0))


def test_poses_are_assigned_to_instances_of_the_type_and_other_objects_stay() -> None:
    room = [entry("Fridge|-01.00|+00.00|+02.00"), thing(MUG), thing(PEN), entry(CHAIR, moveable=True)]
    poses = list(object_poses([pose("Mug_0a1b", 5.0), pose("Mug_0a1b", 6.0)], room))
    mug, pen, chair = room[1]["name"], room[2]["name"], room[3]["name"]
    assert [(pose["objectName"], pose["position"]["x"]) for pose in poses] == [
        (mug, 5.0),
        (mug, 6.0),  # a repeated name makes a copy
        (chair, 3.0),  # unlisted, it would be removed
        (pen, 2.0),
    ]
    assert poses[0]["rotation"] == {"x": 0.0, "y": 90.0, "z": 0.0}


def test_instances_the_trial_does_not_pose_stay_and_bottles_are_glass_bottles() -> None:
    second = "Mug|+04.00|+01.00|+00.00"
    poses = list(object_poses([pose("Mug_0a1b", 5.0)], [thing(MUG), thing(second)]))
    assert sorted(pose["position"]["x"] for pose in poses) in ([4.0, 5.0], [1.0, 5.0])
    assert len({pose["objectName"] for pose in poses}) == 2
    poses = list(object_poses([pose("Glassbottle_0a1b", 5.0)], [thing("Bottle|+01.00|+01.00|+00.00")]))
    assert [pose["position"]["x"] for pose in poses] == [5.0]


def test_no_two_of_a_type_in_the_same_place() -> None:
    """AI2-THOR loses one of two objects with the same id, which consists of type and position."""
    wanted_poses = [pose("Mug_0a1b", 5.0), pose("Mug_0a1b", 5.004), pose("Pen_0a1b", 5.0)]
    poses = list(object_poses(wanted_poses, [thing(MUG), thing(PEN)]))
    places = [(pose["position"]["x"], round(pose["position"]["y"], 3)) for pose in poses]
    assert places == [(5, 1), (5.004, 1.01), (5, 1)]


def start(**changes: object) -> Start:
    values = {"objects": (), "toggles": (), "dirty_and_empty": False, "agent": NOWHERE, "rotation": 0.0, "horizon": 0.0}
    return Start(**{**values, **changes})  # type: ignore[arg-type]


def test_states_are_set_object_by_object() -> None:
    lamp, cup = "DeskLamp|+00.00|+01.00|+00.00", "Cup|+00.00|+01.00|+00.00"
    room = [
        entry(lamp, toggleable=True, isToggled=True),
        thing(cup, dirtyable=True, canFillWithLiquid=True, isFilledWithLiquid=True),
        thing(MUG, dirtyable=True, isDirty=True, canFillWithLiquid=True),
    ]

    def actions(begin: Start) -> list[tuple[str, str]]:
        actions = list(state_actions(begin, room))
        assert all(arguments["forceAction"] for _, arguments in actions)
        return [(action, arguments["objectId"]) for action, arguments in actions]

    assert actions(start()) == [("ToggleObjectOff", lamp)]
    assert actions(start(toggles=(("DeskLamp", True),))) == []
    assert actions(start(toggles=(("DeskLamp", True),), dirty_and_empty=True)) == [
        ("DirtyObject", cup),
        ("EmptyLiquidFromObject", cup),
    ]  # AI2-THOR refuses an action for a state that already holds


def test_objects_away_from_their_poses_are_reported() -> None:
    wanted_poses = [pose("Mug_0a1b", 1.0), pose("Pen_0a1b", 9.0), pose("Vase_0a1b", 3.0)]
    assert misplaced_types(wanted_poses, [thing(MUG), thing(PEN)], ["Vase"]) == ["Pen"]
    assert RestoreReport(3).notes() == {}
    assert RestoreReport(3, missing_types=("Vase",)).notes() == {"posed": 3, "absent": ["Vase"]}


POINTS = [{"x": x / 4, "y": 0.9, "z": z / 4} for x in range(-12, 13) for z in range(-12, 13)]
TARGET = (0.1, 0.9, 2.0)


class Build:
    """Build (AI2-THOR's executable) that answers GetInteractablePoses with a given reply."""

    def __init__(self, ok: bool = True, value: Any = None, unknown: bool = False) -> None:
        self.reply = Reply(ok, "", value, {}, None, unknown=unknown)
        self.requests: list[dict[str, Any]] = []

    def __call__(self, action: str, **arguments: Any) -> Reply:
        assert action == "GetInteractablePoses"
        self.requests.append(arguments)
        return self.reply


def poses(build: Build, points: Any = POINTS) -> list[Pose]:
    return PoseFinder(ThorOptions(), build, points).poses_for("Mug|1", TARGET)


def test_the_build_gets_the_nearest_points_and_the_turns_that_face_the_thing() -> None:
    build = Build(value=[])
    poses(build)
    (request,) = build.requests
    assert request["objectId"] == "Mug|1" and request["standings"] == [True] and len(request["positions"]) == MAX_POINTS
    assert all(abs(pose["x"]) <= 0.75 and abs(pose["z"] - 2) <= 0.75 for pose in request["positions"])
    assert set(request["rotations"]) <= {0.0, 90.0, 180.0, 270.0} and min(request["horizons"]) >= -30


def test_the_nearest_points_come_first_each_with_its_straightest_pose() -> None:
    def pose(x: float, z: float, rotation: float, horizon: float) -> dict[str, Any]:
        return {"x": x, "y": 0.9, "z": z, "rotation": rotation, "standing": True, "horizon": horizon}

    answer = [pose(0, 1, 0, -30), pose(0, 1.5, 90, 0), pose(0, 1.5, 0, 60), pose(0, 1.5, 0, 30), pose(0, 1, 0, 30)]
    ranked = poses(Build(value=answer))
    assert [(pose.z, pose.rotation, pose.horizon) for pose in ranked] == [
        (1.5, 0, 60), (1, 0, 30), (1.5, 0, 30), (1, 0, -30), (1.5, 90, 0),
    ]  # fmt: skip
    assert ranked[0].arguments()["rotation"] == {"x": 0, "y": 0, "z": 0}


@pytest.mark.parametrize("build", [Build(ok=False), Build(ok=False, unknown=True), Build(value=[]), Build()])
def test_geometry_replaces_a_missing_answer_of_the_build(build: Build) -> None:
    ranked = poses(build)
    assert len(ranked) == MAX_POINTS and (ranked[0].x, ranked[0].z) == (0.0, 2.0)
    ahead = next(pose for pose in ranked if (pose.x, pose.z) == (0.0, 1.75))
    assert (ahead.rotation, ahead.horizon) == (0.0, 60.0)  # looks down: the eyes are higher than the thing


def test_a_build_without_the_action_gets_it_once_and_far_things_the_nearest_point() -> None:
    build = Build(ok=False, unknown=True)
    source = PoseFinder(ThorOptions(), build, POINTS)
    for _ in range(3):
        source.poses_for("Mug|1", TARGET)
    assert len(build.requests) == 1 and len(poses(Build(value=[]), [{"x": 50.0, "y": 0.9, "z": 0.0}])) == 1
    assert poses(Build(value=[]), []) == []
