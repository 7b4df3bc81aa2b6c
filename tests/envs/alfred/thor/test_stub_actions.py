"""The stand-in without its process: where one stands, and what one does to a thing."""

from __future__ import annotations

from math import dist

import pytest

from envs.alfred.scene import Scene
from tests.envs.alfred.rooms import kitchen
from tests.envs.alfred.thor.bench import Bench, Record, holding

# where one stands


@pytest.mark.parametrize("size", [60, 90])
def test_every_pose_that_is_named_shows_the_thing(houses: list[Scene], size: float) -> None:
    """Unless it is behind a door, everything that a house of ours holds is seen from somewhere."""
    for scene in houses:
        bench = Bench(scene, fieldOfView=size)
        for one in bench.objects():
            poses = bench.poses(one["objectId"])
            assert poses or one["objectType"] == "Floor" or _shut_in(bench, one)
            for pose in poses[:: max(1, len(poses) // 5)]:
                seen = bench.insist("TeleportFull", **{**pose, "rotation": {"y": pose["rotation"]}})["objects"]
                assert next(other for other in seen if other["objectId"] == one["objectId"])["visible"]


def _shut_in(bench: Bench, entry: Record) -> bool:
    around = [one for one in bench.objects() if one["objectId"] in (entry["parentReceptacles"] or ())]
    return any(one["openable"] and not one["isOpen"] for one in around)


def test_what_is_behind_a_door_is_seen_when_it_opens(cook: Bench) -> None:
    mug, cabinet = cook.id("Mug"), cook.id("Cabinet")
    assert cook.poses(mug) == []
    cook.stand_at(cabinet)
    assert cook.refusal("PickupObject", objectId=mug).startswith("NullReferenceException: Target object not found")
    cook.insist("OpenObject", objectId=cabinet)
    cook.stand_at(mug)
    assert cook.one("Mug")["visible"]
    cook.insist("PickupObject", objectId=mug)


def test_poses_come_in_the_order_of_the_build(cook: Bench) -> None:
    table = cook.id("CounterTop")
    (first,) = cook.poses(table, maxPoses=1)
    assert (first["horizon"], first["standing"]) == (-30.0, False)
    poses = cook.poses(table, horizons=[30, 0], standings=[True], rotations=[180])
    assert [pose["horizon"] for pose in poses] == sorted((pose["horizon"] for pose in poses), reverse=True)
    assert {(pose["standing"], pose["rotation"]) for pose in poses} == {(True, 180.0)}
    point = {"x": 0.0, "y": 0.9, "z": 1.0}
    assert {(pose["x"], pose["z"]) for pose in cook.poses(table, positions=[point])} == {(0.0, 1.0)}
    assert cook.poses(cook.id("Knife"), maxDistance=0.1) == []
    for wrong in ({"horizons": [75]}, {"maxPoses": 0}, {"standings": []}, {"objectId": "Mug|1|2|3"}):
        assert cook.refusal("GetInteractablePoses", **{"objectId": table, **wrong})


def test_standing_points_surround_everything(cook: Bench) -> None:
    points = cook.insist("GetReachablePositions")["actionReturn"]
    assert points[0] == {"x": 0.0, "y": 0.9, "z": 2.0}
    assert len({(point["x"], point["z"]) for point in points}) == len(points)
    for item in kitchen().items:
        away = min(dist((point["x"], point["z"]), (item.position[0], item.position[2])) for point in points)
        assert away < 1.2


def test_teleport_goes_where_one_can_stand(cook: Bench) -> None:
    here = {"x": 0.25, "y": 0.9, "z": 1.5}
    agent = cook.insist("Teleport", position=here, rotation={"y": 450}, horizon=30, standing=False)["agent"]
    assert agent["position"] == here and agent["rotation"]["y"] == 90.0
    assert (agent["cameraHorizon"], agent["isStanding"]) == (30, False)
    agent = cook.insist("Teleport", x=0.5)["agent"]
    assert agent["position"]["x"] == 0.5 and agent["position"]["z"] == 1.5 and not agent["isStanding"]
    for message, wrong in {
        "out of scene bounds": {"position": {"x": 50.0, "y": 0.9, "z": 0.0}},
        "is not on the grid": {"position": {"x": 0.1, "y": 0.9, "z": 1.5}},
        "Collided": {"position": {"x": 0.0, "y": 0.9, "z": 0.0}},
        "too large a change": {"position": {"x": 0.25, "y": 1.2, "z": 1.5}},
        "Each horizon must be in [-30:60]. You gave 90": {"horizon": 90},
        "pitch or roll": {"rotation": {"x": 10, "y": 0, "z": 0}},
    }.items():
        assert message in cook.refusal("Teleport", **wrong)
        cook.insist("Teleport", **wrong, forceAction=True)
        cook.insist("Teleport", position=here, horizon=0)
    assert cook.ask("TeleportFull", position=here)["errorCode"] == "MissingArguments"


def test_steps_follow_the_grid_and_end_at_furniture(cook: Bench) -> None:
    cook.insist("Teleport", position={"x": 0.0, "y": 0.9, "z": 0.5}, rotation={"y": 180})
    assert cook.insist("MoveAhead")["agent"]["position"]["z"] == 0.25
    assert "is blocking Agent" in cook.refusal("MoveAhead")
    assert cook.insist("MoveBack")["agent"]["position"]["z"] == 0.5
    assert cook.insist("RotateRight")["agent"]["rotation"]["y"] == 270
    assert cook.insist("RotateLeft", degrees=180)["agent"]["rotation"]["y"] == 90
    assert cook.insist("MoveRight")["agent"]["position"]["z"] == 0.25
    assert [cook.ask("LookDown")["lastActionSuccess"] for _ in range(3)] == [True, True, False]
    assert cook.ask("LookDown")["errorCode"] == "LookDownCantExceedMin"
    assert cook.insist("LookUp")["agent"]["cameraHorizon"] == 30


# what one does


def test_carrying(cook: Bench) -> None:
    knife, apple, counter = cook.id("Knife"), cook.id("Apple"), cook.id("CounterTop")
    assert "Can't place an object" in cook.refusal("PutObject", objectId=counter)
    assert "not found within the specified visibility" in cook.refusal("PickupObject", objectId=knife)
    cook.stand_at(knife)
    assert "must have the property CanPickup" in cook.refusal("PickupObject", objectId=counter)
    assert cook.insist("PickupObject", objectId=knife)["actionReturn"] == knife
    held = cook.insist("RotateRight")
    assert held["inventoryObjects"] == [{"objectId": knife, "objectType": "Knife"}]
    entry = cook.one("Knife")
    assert entry["isPickedUp"] and entry["visible"] and entry["parentReceptacles"] is None
    assert entry["position"] == held["heldObjectPose"]["position"]
    assert "already" in cook.refusal("PickupObject", objectId=apple, forceAction=True)
    cook.stand_at(cook.id("Drawer"))
    assert "is CLOSED" in cook.refusal("PutObject", objectId=cook.id("Drawer"))
    cook.insist("OpenObject", objectId=cook.id("Drawer"))
    cook.insist("PutObject", objectId=cook.id("Drawer"))
    assert cook.one("Drawer")["receptacleObjectIds"] == [knife] and not cook.insist("Pass")["inventoryObjects"]
    assert "NOT a receptacle" in holding(cook, knife).refusal("PutObject", objectId=apple, forceAction=True)
    cook.insist("DropHandObject")
    assert cook.one("Knife")["parentReceptacles"] == [cook.id("Floor")]
    assert "Nothing is in the agent's hand" in cook.refusal("DropHeldObject")


def test_the_worlds_own_refusals_are_told(cook: Bench) -> None:
    holding(cook, cook.id("Plate"))
    assert "no container goes in another" in cook.refusal("PutObject", objectId=cook.id("Box"), forceAction=True)
    assert "another object's collision" in cook.refusal("PutObject", objectId=cook.id("StoveBurner"), forceAction=True)


def test_doors_and_switches(cook: Bench) -> None:
    fridge, microwave = cook.id("Fridge"), cook.id("Microwave")
    for _ in range(2):  # again is no failure
        cook.insist("OpenObject", objectId=fridge, forceAction=True)
    assert cook.one("Fridge")["isOpen"] and cook.one("Fridge")["openness"] == 1.0
    cook.insist("CloseObject", objectId=fridge, forceAction=True)
    assert cook.one("Egg")["temperature"] == "Cold" and not cook.one("Fridge")["isOpen"]
    cook.insist("OpenObject", objectId=microwave, forceAction=True)
    assert "must be closed" in cook.refusal("ToggleObjectOn", objectId=microwave, forceAction=True)
    holding(cook, cook.id("Potato")).insist("PutObject", objectId=microwave, forceAction=True)
    cook.insist("CloseObject", objectId=microwave, forceAction=True)
    cook.insist("ToggleObjectOn", objectId=microwave, forceAction=True)
    assert "it's already on" in cook.refusal("ToggleObjectOn", objectId=microwave, forceAction=True)
    assert "must be OFF" in cook.refusal("OpenObject", objectId=microwave, forceAction=True)
    assert cook.one("Potato")["temperature"] == "Hot" and cook.one("Potato")["isCooked"]
    assert "not an Openable" in cook.refusal("OpenObject", objectId=cook.id("Mug"), forceAction=True)
    assert "not toggleable" in cook.refusal("ToggleObjectOn", objectId=cook.id("Mug"), forceAction=True)


def test_knobs_turn_burners_on(cook: Bench) -> None:
    burner, knob = cook.id("StoveBurner"), cook.id("StoveKnob")
    assert cook.one("StoveKnob")["controlledObjects"] == [burner]
    assert "controlled by another" in cook.refusal("ToggleObjectOn", objectId=burner, forceAction=True)
    cook.insist("ToggleObjectOn", objectId=knob, forceAction=True)
    assert cook.one("StoveBurner")["isToggled"] and not cook.one("StoveBurner", 1)["isToggled"]


def test_dirt_and_liquids(cook: Bench) -> None:
    plate, mug, forced = cook.id("Plate"), cook.id("Mug"), {"forceAction": True}
    assert "already Clean" in cook.refusal("CleanObject", objectId=plate, **forced)
    cook.insist("DirtyObject", objectId=plate, **forced)
    assert "already dirty" in cook.refusal("DirtyObject", objectId=plate, **forced)
    holding(cook, plate).insist("PutObject", objectId=cook.id("SinkBasin"), **forced)
    assert cook.one("Plate")["isDirty"]
    cook.insist("ToggleObjectOn", objectId=cook.id("Faucet"), **forced)
    assert not cook.one("Plate")["isDirty"]
    assert "already empty" in cook.refusal("EmptyLiquidFromObject", objectId=mug, **forced)
    cook.insist("FillObjectWithLiquid", objectId=mug, fillLiquid="coffee", **forced)
    assert cook.one("Mug")["isFilledWithLiquid"] and cook.one("Mug")["fillLiquid"] == "coffee"
    cook.insist("EmptyLiquidFromObject", objectId=mug, **forced)
    assert not cook.one("Mug")["isFilledWithLiquid"]
    cook.insist("SetObjectStates", SetObjectStates={"objectType": "Mug", "stateChange": "dirtyable", "isDirty": True})
    assert cook.one("Mug")["isDirty"] and not cook.one("Plate")["isDirty"]


def test_what_is_cut_stays_in_the_list_and_is_seen_no_more(cook: Bench) -> None:
    """Without a knife: skills have to ask for one, the build does not."""
    apple = cook.id("Apple")
    cook.stand_at(apple)
    cook.insist("SliceObject", objectId=apple)
    whole = cook.one("Apple")
    assert whole["isSliced"] and not whole["visible"] and cook.poses(apple) == []
    pieces = cook.objects("AppleSliced")
    assert [one["objectId"] for one in pieces] == [f"{apple}|AppleSliced_{number}" for number in range(3)]
    assert all(one["visible"] and one["parentReceptacles"] == [cook.id("CounterTop")] for one in pieces)
    cook.insist("SliceObject", objectId=apple, forceAction=True)  # again: nothing happens
    assert len(cook.objects("AppleSliced")) == 3 and not cook.objects("Knife")[0]["isPickedUp"]
    cook.insist("PickupObject", objectId=pieces[1]["objectId"])
    assert "CanBeSliced" in cook.refusal("SliceObject", objectId=cook.id("Mug"), forceAction=True)
    assert "agent's hand" in _potato(Bench(kitchen())).refusal("SliceObject", objectId=cook.id("Potato"))


def _potato(bench: Bench) -> Bench:
    return holding(bench, bench.id("Potato"))
