"""Stand-in for AI2-THOR, without its process: poses, actions on one object, and new poses for many at once."""

from __future__ import annotations

from collections import Counter
from math import dist
from typing import Any

import pytest

from envs.alfred.scene import Scene
from tests.envs.alfred.rooms import bedroom, kitchen
from tests.envs.alfred.thor.in_process import Record, Sim, holding

# poses


@pytest.mark.parametrize("size", [60, 90])
def test_every_listed_pose_shows_the_thing(houses: list[Scene], size: float) -> None:
    """Only the floor and things behind a door have no pose from which they are visible."""
    for scene in houses:
        sim = Sim(scene, fieldOfView=size)
        for entry in sim.objects():
            poses = sim.poses(entry["objectId"])
            assert poses or entry["objectType"] == "Floor" or _shut_in(sim, entry)
            for pose in poses[:: max(1, len(poses) // 5)]:
                agent = sim.require("TeleportFull", **{**pose, "rotation": {"y": pose["rotation"]}})
                assert any(record["objectId"] == entry["objectId"] and record["visible"] for record in agent["objects"])


def _shut_in(sim: Sim, entry: Record) -> bool:
    around = [outer for outer in sim.objects() if outer["objectId"] in (entry["parentReceptacles"] or ())]
    return any(outer["openable"] and not outer["isOpen"] for outer in around)


def test_things_behind_a_door_are_visible_after_it_opens(sim: Sim) -> None:
    mug, cabinet = sim.id("Mug"), sim.id("Cabinet")
    assert sim.poses(mug) == []
    sim.stand_at(cabinet)
    assert sim.refusal("PickupObject", objectId=mug).startswith("NullReferenceException: Target object not found")
    sim.require("OpenObject", objectId=cabinet)
    sim.stand_at(mug)
    assert sim.entry("Mug")["visible"]
    sim.require("PickupObject", objectId=mug)


def test_poses_come_in_the_order_of_the_build(sim: Sim) -> None:
    table = sim.id("CounterTop")
    (first,) = sim.poses(table, maxPoses=1)
    assert (first["horizon"], first["standing"]) == (-30.0, False)
    poses = sim.poses(table, horizons=[30, 0], standings=[True], rotations=[180])
    assert [pose["horizon"] for pose in poses] == sorted((pose["horizon"] for pose in poses), reverse=True)
    assert {(pose["standing"], pose["rotation"]) for pose in poses} == {(True, 180.0)}
    point = {"x": 0.0, "y": 0.9, "z": 1.0}
    assert {(pose["x"], pose["z"]) for pose in sim.poses(table, positions=[point])} == {(0.0, 1.0)}
    assert sim.poses(sim.id("Knife"), maxDistance=0.1) == []
    for wrong in ({"horizons": [75]}, {"maxPoses": 0}, {"standings": []}, {"objectId": "Mug|1|2|3"}):
        assert sim.refusal("GetInteractablePoses", **{"objectId": table, **wrong})


def test_standing_points_surround_everything_and_steps_follow_the_grid_up_to_furniture(sim: Sim) -> None:
    points = sim.require("GetReachablePositions")["actionReturn"]
    assert points[0] == {"x": 0.0, "y": 0.9, "z": 2.0}
    assert len({(point["x"], point["z"]) for point in points}) == len(points)
    for item in kitchen().items:
        away = min(dist((point["x"], point["z"]), (item.position[0], item.position[2])) for point in points)
        assert away < 1.2
    sim.require("Teleport", position={"x": 0.0, "y": 0.9, "z": 0.5}, rotation={"y": 180})
    assert sim.require("MoveAhead")["agent"]["position"]["z"] == 0.25
    assert "is blocking Agent" in sim.refusal("MoveAhead")
    assert sim.require("MoveBack")["agent"]["position"]["z"] == 0.5
    assert sim.require("RotateRight")["agent"]["rotation"]["y"] == 270
    assert sim.require("RotateLeft", degrees=180)["agent"]["rotation"]["y"] == 90
    assert sim.require("MoveRight")["agent"]["position"]["z"] == 0.25
    assert [sim.ask("LookDown")["lastActionSuccess"] for _ in range(3)] == [True, True, False]
    assert sim.ask("LookDown")["errorCode"] == "LookDownCantExceedMin"
    assert sim.require("LookUp")["agent"]["cameraHorizon"] == 30


def test_teleport_accepts_standing_points_only(sim: Sim) -> None:
    point = {"x": 0.25, "y": 0.9, "z": 1.5}
    agent = sim.require("Teleport", position=point, rotation={"y": 450}, horizon=30, standing=False)["agent"]
    assert agent["position"] == point and agent["rotation"]["y"] == 90.0
    assert (agent["cameraHorizon"], agent["isStanding"]) == (30, False)
    agent = sim.require("Teleport", x=0.5)["agent"]
    assert agent["position"]["x"] == 0.5 and agent["position"]["z"] == 1.5 and not agent["isStanding"]
    for message, wrong in {
        "out of scene bounds": {"position": {"x": 50.0, "y": 0.9, "z": 0.0}},
        "is not on the grid": {"position": {"x": 0.1, "y": 0.9, "z": 1.5}},
        "Collided": {"position": {"x": 0.0, "y": 0.9, "z": 0.0}},
        "too large a change": {"position": {"x": 0.25, "y": 1.2, "z": 1.5}},
        "Each horizon must be in [-30:60]. You gave 90": {"horizon": 90},
        "pitch or roll": {"rotation": {"x": 10, "y": 0, "z": 0}},
    }.items():
        assert message in sim.refusal("Teleport", **wrong)
        sim.require("Teleport", **wrong, forceAction=True)
        sim.require("Teleport", position=point, horizon=0)
    assert sim.ask("TeleportFull", position=point)["errorCode"] == "MissingArguments"


# actions


def test_carrying(sim: Sim) -> None:
    knife, apple, counter = sim.id("Knife"), sim.id("Apple"), sim.id("CounterTop")
    assert "Can't place an object" in sim.refusal("PutObject", objectId=counter)
    assert "not found within the specified visibility" in sim.refusal("PickupObject", objectId=knife)
    sim.stand_at(knife)
    assert "must have the property CanPickup" in sim.refusal("PickupObject", objectId=counter)
    assert sim.require("PickupObject", objectId=knife)["actionReturn"] == knife
    agent = sim.require("RotateRight")
    assert agent["inventoryObjects"] == [{"objectId": knife, "objectType": "Knife"}]
    entry = sim.entry("Knife")
    assert entry["isPickedUp"] and entry["visible"] and entry["parentReceptacles"] is None
    assert entry["position"] == agent["heldObjectPose"]["position"]
    assert "already" in sim.refusal("PickupObject", objectId=apple, forceAction=True)
    sim.stand_at(sim.id("Drawer"))
    assert "is CLOSED" in sim.refusal("PutObject", objectId=sim.id("Drawer"))
    sim.require("OpenObject", objectId=sim.id("Drawer"))
    sim.require("PutObject", objectId=sim.id("Drawer"))
    assert sim.entry("Drawer")["receptacleObjectIds"] == [knife] and not sim.require("Pass")["inventoryObjects"]
    assert "NOT a receptacle" in holding(sim, knife).refusal("PutObject", objectId=apple, forceAction=True)
    sim.require("DropHandObject")
    assert sim.entry("Knife")["parentReceptacles"] == [sim.id("Floor")]
    assert "Nothing is in the agent's hand" in sim.refusal("DropHeldObject")


def test_knobs_turn_burners_on_and_symbolic_refusals_are_passed_on(sim: Sim) -> None:
    holding(sim, sim.id("Plate"))
    assert "no container goes in another" in sim.refusal("PutObject", objectId=sim.id("Box"), forceAction=True)
    assert "another object's collision" in sim.refusal("PutObject", objectId=sim.id("StoveBurner"), forceAction=True)
    burner, knob = sim.id("StoveBurner"), sim.id("StoveKnob")
    assert sim.entry("StoveKnob")["controlledObjects"] == [burner]
    assert "controlled by another" in sim.refusal("ToggleObjectOn", objectId=burner, forceAction=True)
    sim.require("ToggleObjectOn", objectId=knob, forceAction=True)
    assert sim.entry("StoveBurner")["isToggled"] and not sim.entry("StoveBurner", 1)["isToggled"]


def test_doors_and_switches(sim: Sim) -> None:
    fridge, microwave = sim.id("Fridge"), sim.id("Microwave")
    for _ in range(2):  # a repeated OpenObject succeeds
        sim.require("OpenObject", objectId=fridge, forceAction=True)
    assert sim.entry("Fridge")["isOpen"] and sim.entry("Fridge")["openness"] == 1.0
    sim.require("CloseObject", objectId=fridge, forceAction=True)
    assert sim.entry("Egg")["temperature"] == "Cold" and not sim.entry("Fridge")["isOpen"]
    sim.require("OpenObject", objectId=microwave, forceAction=True)
    assert "must be closed" in sim.refusal("ToggleObjectOn", objectId=microwave, forceAction=True)
    holding(sim, sim.id("Potato")).require("PutObject", objectId=microwave, forceAction=True)
    sim.require("CloseObject", objectId=microwave, forceAction=True)
    sim.require("ToggleObjectOn", objectId=microwave, forceAction=True)
    assert "it's already on" in sim.refusal("ToggleObjectOn", objectId=microwave, forceAction=True)
    assert "must be OFF" in sim.refusal("OpenObject", objectId=microwave, forceAction=True)
    assert sim.entry("Potato")["temperature"] == "Hot" and sim.entry("Potato")["isCooked"]
    assert "not an Openable" in sim.refusal("OpenObject", objectId=sim.id("Mug"), forceAction=True)
    assert "not toggleable" in sim.refusal("ToggleObjectOn", objectId=sim.id("Mug"), forceAction=True)


def test_dirt_and_liquids(sim: Sim) -> None:
    plate, mug, forced = sim.id("Plate"), sim.id("Mug"), {"forceAction": True}
    assert "already Clean" in sim.refusal("CleanObject", objectId=plate, **forced)
    sim.require("DirtyObject", objectId=plate, **forced)
    assert "already dirty" in sim.refusal("DirtyObject", objectId=plate, **forced)
    holding(sim, plate).require("PutObject", objectId=sim.id("SinkBasin"), **forced)
    assert sim.entry("Plate")["isDirty"]
    sim.require("ToggleObjectOn", objectId=sim.id("Faucet"), **forced)
    assert not sim.entry("Plate")["isDirty"]
    assert "already empty" in sim.refusal("EmptyLiquidFromObject", objectId=mug, **forced)
    sim.require("FillObjectWithLiquid", objectId=mug, fillLiquid="coffee", **forced)
    assert sim.entry("Mug")["isFilledWithLiquid"] and sim.entry("Mug")["fillLiquid"] == "coffee"
    sim.require("EmptyLiquidFromObject", objectId=mug, **forced)
    assert not sim.entry("Mug")["isFilledWithLiquid"]
    sim.require("SetObjectStates", SetObjectStates={"objectType": "Mug", "stateChange": "dirtyable", "isDirty": True})
    assert sim.entry("Mug")["isDirty"] and not sim.entry("Plate")["isDirty"]


def test_a_cut_thing_stays_in_the_list_but_invisible(sim: Sim) -> None:
    """AI2-THOR cuts without a knife; only the skills require one."""
    apple = sim.id("Apple")
    sim.stand_at(apple)
    sim.require("SliceObject", objectId=apple)
    whole = sim.entry("Apple")
    assert whole["isSliced"] and not whole["visible"] and sim.poses(apple) == []
    pieces = sim.objects("AppleSliced")
    assert [entry["objectId"] for entry in pieces] == [f"{apple}|AppleSliced_{number}" for number in range(3)]
    assert all(entry["visible"] and entry["parentReceptacles"] == [sim.id("CounterTop")] for entry in pieces)
    sim.require("SliceObject", objectId=apple, forceAction=True)  # a second cut has no effect
    assert len(sim.objects("AppleSliced")) == 3 and not sim.objects("Knife")[0]["isPickedUp"]
    sim.require("PickupObject", objectId=pieces[1]["objectId"])
    assert "CanBeSliced" in sim.refusal("SliceObject", objectId=sim.id("Mug"), forceAction=True)
    second = Sim(kitchen())
    assert "agent's hand" in holding(second, second.id("Potato")).refusal("SliceObject", objectId=second.id("Potato"))


def loose(sim: Sim) -> list[Record]:
    """Return the present poses of everything that can be picked up or moved."""
    return [
        {"objectName": entry["name"], "position": entry["position"], "rotation": entry["rotation"]}
        for entry in sim.objects()
        if entry["pickupable"] or entry["moveable"]
    ]


def shape(sim: Sim) -> list[tuple[Any, ...]]:
    keys = ("name", "objectType", "isOpen", "isToggled", "isDirty", "position")
    place_of = {entry["objectId"]: entry["name"] for entry in sim.objects()}
    return [
        (*(entry[key] for key in keys), [place_of[name] for name in entry["parentReceptacles"] or ()])
        for entry in sim.objects()
    ]


def test_posing_everything_where_it_is_changes_nothing(houses: list[Scene]) -> None:
    for scene in (*houses, kitchen(), bedroom()):
        sim = Sim(scene)
        before = shape(sim)
        places = {(entry["objectType"], *(round(x, 2) for x in entry["position"].values())) for entry in sim.objects()}
        if len({entry["objectId"] for entry in sim.objects()}) == len(places):
            sim.require("SetObjectPoses", objectPoses=loose(sim))
            assert shape(sim) == before


def test_unlisted_things_are_removed(sim: Sim) -> None:
    """Movable furniture is removed as well; fixed furniture stays."""
    poses = [pose for pose in loose(sim) if pose["objectName"].startswith(("Mug", "Knife"))]
    sim.require("SetObjectPoses", objectPoses=poses)
    counts = Counter(entry["objectType"] for entry in sim.objects())
    assert counts["Mug"] == counts["Knife"] == 1 and counts["Fridge"] == 1 and counts["CounterTop"] == 2
    assert not {"Apple", "Pan", "Box", "Pencil", "Chair", "Microwave"} & counts.keys()
    assert sim.entry("Mug")["parentReceptacles"] == [sim.id("Cabinet")]


def test_a_name_twice_is_a_copy(sim: Sim) -> None:
    mug = sim.entry("Mug")
    on_counter = {"x": 0.2, "y": 0.95, "z": 0.1}
    again = {"objectName": mug["name"], "position": on_counter, "rotation": {"x": 0, "y": 90, "z": 0}}
    poses = [*loose(sim), again]
    sim.require("SetObjectPoses", objectPoses=poses)
    first, copy = sim.objects("Mug")
    assert first["name"] == mug["name"] and copy["name"] == f"{mug['name']}(Clone)_copy_{len(poses) - 1}"
    assert copy["objectId"] == "Mug|+00.21|+00.95|+00.10" != first["objectId"]
    assert copy["parentReceptacles"] == [sim.id("CounterTop")] and copy["rotation"]["y"] == 90
    sim.stand_at(copy["objectId"])
    sim.require("PickupObject", objectId=copy["objectId"])


def test_an_unknown_name_fails_after_all_others_are_placed(sim: Sim) -> None:
    unknown = {"objectName": "Mug_00000000", "position": {"x": 0, "y": 1, "z": 0}, "rotation": {"x": 0, "y": 0, "z": 0}}
    poses = [pose for pose in loose(sim) if pose["objectName"].startswith("Knife")]
    message = sim.refusal("SetObjectPoses", objectPoses=[unknown, *poses])
    assert message == "No Pickupable or Moveable object of name Mug_00000000 found in scene."
    assert [entry["objectType"] for entry in sim.objects() if entry["pickupable"]] == ["Knife"]
    assert "was not initialized" in sim.refusal("SetObjectPoses", objectPoses=[])


def test_positions_decide_the_receptacle(sim: Sim) -> None:
    def put(kind: str, x: float, y: float, z: float) -> Record:
        return {"objectName": sim.entry(kind)["name"], "position": {"x": x, "y": y, "z": z}, "rotation": {}}

    moves = [put("Egg", 0.3, 0.92, 8.1), put("Knife", -6.0, 0.1, -6.0), put("Pan", 2.0, 0.92, 4.5), put("Mug", 0, 2, 5)]
    moves += [put("Potato", 0.3, 0.95, 0.0), put("Plate", 0.3, 0.92, 0.0)]
    poses = {pose["objectName"]: pose for pose in (*loose(sim), *moves)}
    sim.require("SetObjectPoses", objectPoses=list(poses.values()))
    parents = {kind: sim.entry(kind)["parentReceptacles"] for kind in ("Egg", "Knife", "Pan", "Potato")}
    counter, second = (entry["objectId"] for entry in sim.objects("CounterTop"))
    assert parents["Egg"] == [second] and parents["Knife"] == [sim.id("Floor")]
    assert parents["Pan"] == [sim.id("StoveBurner", 1)] and parents["Potato"] == [sim.id("Plate"), counter]


def test_of_two_things_with_the_same_id_the_later_remains(sim: Sim) -> None:
    mug = sim.entry("Mug")
    twice = {"objectName": mug["name"], "position": mug["position"], "rotation": mug["rotation"]}
    sim.require("SetObjectPoses", objectPoses=[*loose(sim), twice])
    (copy,) = sim.objects("Mug")
    assert "_copy_" in copy["name"]


def test_states_survive_new_poses(sim: Sim) -> None:
    sim.require("DirtyObject", objectId=sim.id("Plate"), forceAction=True)
    sim.require("OpenObject", objectId=sim.id("Fridge"), forceAction=True)
    sim.require("SliceObject", objectId=sim.id("Apple"), forceAction=True)
    cut = {entry["name"] for entry in sim.objects("Apple") if entry["isSliced"]}
    assert cut
    sim.ask("SetObjectPoses", objectPoses=[pose for pose in loose(sim) if pose["objectName"] not in cut])
    assert sim.entry("Plate")["isDirty"] and sim.entry("Fridge")["isOpen"]
    assert not any(entry["isSliced"] for entry in sim.objects())  # a cut object cannot be restored
    (piece,) = sim.objects("AppleSliced")  # the slices had the same position, so the same id
    assert piece["objectId"].count("|") == 3
