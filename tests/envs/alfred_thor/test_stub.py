"""The stand-in without its process: what it makes of each action."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import dist
from typing import Any

import numpy as np
import pytest

from envs.alfred.episodes import load_episodes
from envs.alfred.mining import official_id
from envs.alfred.scene import Item, Placed, Scene, Start
from envs.alfred.thor_stub import faults
from envs.alfred.thor_stub.house import KEY, from_house, to_house
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.simulator import ACTIONS, Answer, Simulator
from keep_agent.errors import ConfigError, DataError
from tests.envs.rooms import bedroom, inside, kitchen, place

Record = dict[str, Any]


class Bench:
    """A simulator with the house of a scene, and short ways to ask it."""

    def __init__(self, scene: Scene | None = None, **settings: Any) -> None:
        self.simulator = Simulator.of(Rooms(), images=False)
        self.ask("Initialize", **{"fieldOfView": 60, **settings})
        if scene is not None:
            self.insist("CreateHouse", house=json.loads(json.dumps(to_house(scene))))

    def answer(self, action: str, **arguments: Any) -> Answer:
        return self.simulator.handle({"action": action, "sequenceId": 1, **arguments})

    def ask(self, action: str, **arguments: Any) -> Record:
        (agent,) = self.answer(action, **arguments).metadata["agents"]
        return agent

    def insist(self, action: str, **arguments: Any) -> Record:
        agent = self.ask(action, **arguments)
        assert agent["lastActionSuccess"], f"{action}: {agent['errorMessage']}"
        return agent

    def refusal(self, action: str, **arguments: Any) -> str:
        agent = self.ask(action, **arguments)
        assert not agent["lastActionSuccess"], action
        return agent["errorMessage"]

    def objects(self, kind: str = "") -> list[Record]:
        return [one for one in self.insist("Pass")["objects"] if kind in ("", one["objectType"])]

    def one(self, kind: str, number: int = 0) -> Record:
        return self.objects(kind)[number]

    def id(self, kind: str, number: int = 0) -> str:
        return self.one(kind, number)["objectId"]

    def poses(self, object_id: str, **arguments: Any) -> list[Record]:
        return self.insist("GetInteractablePoses", objectId=object_id, **arguments)["actionReturn"]

    def stand_at(self, object_id: str) -> None:
        """As a client does: the first pose, with the rotation as the client's step() wraps it."""
        pose = self.poses(object_id, standings=[True])[0]
        self.insist("TeleportFull", **{**pose, "rotation": {"y": pose["rotation"]}})


def beside(scene: Scene) -> Scene:
    """The scene with its agent on a point of the grid."""
    return replace(scene, agent=(0.0, 2.0))


@pytest.fixture
def cook() -> Bench:
    return Bench(beside(kitchen()))


@pytest.fixture(scope="module")
def houses() -> list[Scene]:
    return [episode.scene for episode in load_episodes(None, "valid")[:8]]


# houses


def test_a_house_survives_its_way_through_json(houses: list[Scene]) -> None:
    pose = Placed("Mug_1234abcd", (1.0, 0.9, 2.0), (0.0, 90.0, 0.0))
    start = Start((pose,), (("DeskLamp", True),), True, (0.5, 0.9, 1.0), 90.0, 30.0)
    for scene in (*houses, kitchen(), bedroom(), replace(kitchen(), start=start)):
        assert from_house(json.loads(json.dumps(to_house(scene)))) == scene


@pytest.mark.parametrize("house", [{}, {"rooms": []}, {KEY: {"id": "x"}}, {KEY: 3}])
def test_a_house_of_another_kind_is_refused(house: Record) -> None:
    with pytest.raises(DataError, match="to_house"):
        from_house(house)
    bench = Bench()
    assert "keep_agent" in bench.refusal("CreateHouse", house=house) or KEY in house
    assert not bench.objects("Mug") and bench.objects("Floor")


def test_things_have_ids_and_names_of_another_build() -> None:
    scene = replace(kitchen(), items=(*kitchen().items, place("Glassbottle", 1, 1, 1)))
    entries = Bench(scene).objects()
    ids = [one["objectId"] for one in entries]
    assert len(set(ids)) == len(ids)
    assert not {official_id(item.type, item.position) for item in scene.items} & set(ids)
    expected = ["Bottle" if item.type == "Glassbottle" else item.type for item in scene.items]
    assert [one["objectType"] for one in entries][: len(expected)] == expected
    assert {"Floor", "Window", "Chair", "LightSwitch", "StoveKnob", "Sink"} <= {one["objectType"] for one in entries}
    basin = next(one for one in entries if one["objectType"] == "SinkBasin")
    assert basin["objectId"] == "Sink|-03.99|+00.90|+00.00|SinkBasin"
    assert [one["name"] for one in entries] == [one["name"] for one in Bench(scene).objects()]


def test_nested_things_name_all_that_they_are_in() -> None:
    bench = Bench(kitchen())
    box, pencil, counter = bench.one("Box"), bench.one("Pencil"), bench.one("CounterTop", 1)
    assert pencil["parentReceptacles"] == [box["objectId"], counter["objectId"]]
    assert counter["receptacleObjectIds"] == [box["objectId"], pencil["objectId"]]
    assert bench.one("Potato")["parentReceptacles"] == [bench.id("Floor")]
    assert bench.one("Fridge")["parentReceptacles"] is None
    assert bench.one("Cabinet")["receptacleObjectIds"] == [bench.id("Mug")]
    assert bench.one("Knife")["receptacleObjectIds"] is None


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
    assert "NOT a receptacle" in _with(cook, knife).refusal("PutObject", objectId=apple, forceAction=True)
    cook.insist("DropHandObject")
    assert cook.one("Knife")["parentReceptacles"] == [cook.id("Floor")]
    assert "Nothing is in the agent's hand" in cook.refusal("DropHeldObject")


def _with(bench: Bench, object_id: str) -> Bench:
    bench.insist("PickupObject", objectId=object_id, forceAction=True)
    return bench


def test_the_worlds_own_refusals_are_told(cook: Bench) -> None:
    _with(cook, cook.id("Plate"))
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
    _with(cook, cook.id("Potato")).insist("PutObject", objectId=microwave, forceAction=True)
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
    _with(cook, plate).insist("PutObject", objectId=cook.id("SinkBasin"), **forced)
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
    return _with(bench, bench.id("Potato"))


# many at once


def loose(bench: Bench) -> list[Record]:
    """A pose for everything that could be picked up or moved, as it is."""
    return [
        {"objectName": one["name"], "position": one["position"], "rotation": one["rotation"]}
        for one in bench.objects()
        if one["pickupable"] or one["moveable"]
    ]


def shape(bench: Bench) -> list[tuple[Any, ...]]:
    kept = ("name", "objectType", "isOpen", "isToggled", "isDirty", "position")
    place_of = {one["objectId"]: one["name"] for one in bench.objects()}
    return [
        (*(one[key] for key in kept), [place_of[name] for name in one["parentReceptacles"] or ()])
        for one in bench.objects()
    ]


def test_posing_everything_where_it_is_changes_nothing(houses: list[Scene]) -> None:
    for scene in (*houses, kitchen(), bedroom()):
        bench = Bench(scene)
        before = shape(bench)
        if len({one["objectId"] for one in bench.objects()}) == len(_ids_by_place(bench)):
            bench.insist("SetObjectPoses", objectPoses=loose(bench))
            assert shape(bench) == before


def _ids_by_place(bench: Bench) -> set[tuple[Any, ...]]:
    return {(one["objectType"], *(round(value, 2) for value in one["position"].values())) for one in bench.objects()}


def test_what_is_not_listed_is_gone(cook: Bench) -> None:
    """Furniture that could be moved, too; what cannot be moved stays."""
    poses = [pose for pose in loose(cook) if pose["objectName"].startswith(("Mug", "Knife"))]
    cook.insist("SetObjectPoses", objectPoses=poses)
    left = Counter(one["objectType"] for one in cook.objects())
    assert left["Mug"] == left["Knife"] == 1 and left["Fridge"] == 1 and left["CounterTop"] == 2
    assert not {"Apple", "Pan", "Box", "Pencil", "Chair", "Microwave"} & left.keys()
    assert cook.one("Mug")["parentReceptacles"] == [cook.id("Cabinet")]


def test_a_name_twice_is_a_copy(cook: Bench) -> None:
    mug = cook.one("Mug")
    on_counter = {"x": 0.2, "y": 0.95, "z": 0.1}
    again = {"objectName": mug["name"], "position": on_counter, "rotation": {"x": 0, "y": 90, "z": 0}}
    poses = [*loose(cook), again]
    cook.insist("SetObjectPoses", objectPoses=poses)
    first, copy = cook.objects("Mug")
    assert first["name"] == mug["name"] and copy["name"] == f"{mug['name']}(Clone)_copy_{len(poses) - 1}"
    assert copy["objectId"] == "Mug|+00.21|+00.95|+00.10" != first["objectId"]
    assert copy["parentReceptacles"] == [cook.id("CounterTop")] and copy["rotation"]["y"] == 90
    cook.stand_at(copy["objectId"])
    cook.insist("PickupObject", objectId=copy["objectId"])


def test_a_name_nobody_has_fails_after_the_others_are_put(cook: Bench) -> None:
    lost = {"objectName": "Mug_00000000", "position": {"x": 0, "y": 1, "z": 0}, "rotation": {"x": 0, "y": 0, "z": 0}}
    poses = [pose for pose in loose(cook) if pose["objectName"].startswith("Knife")]
    message = cook.refusal("SetObjectPoses", objectPoses=[lost, *poses])
    assert message == "No Pickupable or Moveable object of name Mug_00000000 found in scene."
    assert [one["objectType"] for one in cook.objects() if one["pickupable"]] == ["Knife"]
    assert "was not initialized" in cook.refusal("SetObjectPoses", objectPoses=[])


def test_positions_decide_what_things_are_in(cook: Bench) -> None:
    def put(kind: str, x: float, y: float, z: float) -> Record:
        return {"objectName": cook.one(kind)["name"], "position": {"x": x, "y": y, "z": z}, "rotation": {}}

    moved = [put("Egg", 0.3, 0.92, 8.1), put("Knife", -6.0, 0.1, -6.0), put("Pan", 2.0, 0.92, 4.5), put("Mug", 0, 2, 5)]
    moved.append(put("Potato", 0.3, 0.95, 0.0))
    moved.append(put("Plate", 0.3, 0.92, 0.0))
    poses = {pose["objectName"]: pose for pose in (*loose(cook), *moved)}
    cook.insist("SetObjectPoses", objectPoses=list(poses.values()))
    parents = {kind: cook.one(kind)["parentReceptacles"] for kind in ("Egg", "Knife", "Pan", "Potato")}
    counter, second = (one["objectId"] for one in cook.objects("CounterTop"))
    assert parents["Egg"] == [second]
    assert parents["Knife"] == [cook.id("Floor")]
    assert parents["Pan"] == [cook.id("StoveBurner", 1)]
    assert parents["Potato"] == [cook.id("Plate"), counter]


def test_of_two_things_with_one_id_the_later_is_left(cook: Bench) -> None:
    mug = cook.one("Mug")
    twice = {"objectName": mug["name"], "position": mug["position"], "rotation": mug["rotation"]}
    cook.insist("SetObjectPoses", objectPoses=[*loose(cook), twice])
    (left,) = cook.objects("Mug")
    assert "_copy_" in left["name"]


def test_states_outlive_new_poses(cook: Bench) -> None:
    cook.insist("DirtyObject", objectId=cook.id("Plate"), forceAction=True)
    cook.insist("OpenObject", objectId=cook.id("Fridge"), forceAction=True)
    cook.insist("SliceObject", objectId=cook.id("Apple"), forceAction=True)
    uncut = [pose for pose in loose(cook) if pose["objectName"] != cook.one("Apple", 0)["name"] or not _cut(cook)]
    cook.ask("SetObjectPoses", objectPoses=uncut)
    assert cook.one("Plate")["isDirty"] and cook.one("Fridge")["isOpen"]
    assert not any(one["isSliced"] for one in cook.objects())  # what was cut to pieces cannot be put back
    assert [one["objectId"].count("|") for one in cook.objects("AppleSliced")] == [3]  # all lay on one spot


def _cut(bench: Bench) -> bool:
    return any(one["isSliced"] for one in bench.objects("Apple"))


# the wire


def test_what_the_build_does_not_know() -> None:
    bench = Bench()
    assert bench.ask("SetObjectToggles", objectToggles=[])["errorCode"] == "InvalidAction"
    wrong = bench.ask("PutObject", objectId="Mug|1|2|3", receptacleObjectId="Sink|1|2|3")
    assert wrong["errorCode"] == "InvalidArgument" and "'receptacleObjectId'" in wrong["errorMessage"]
    missing = bench.ask("OpenObject")
    assert (missing["errorCode"], missing["errorMessage"]) == (
        "MissingArguments",
        "action: OpenObject is missing the following arguments: objectId",
    )
    assert bench.ask("Pass", renderImage=False, agentId=0)["errorCode"] == ""
    assert "is not the objectId" in bench.refusal("OpenObject", objectId="Mug|1|2|3")
    assert bench.refusal("Teleport", position=7).startswith("TypeError")
    assert "--data" in bench.refusal("Reset", sceneName="FloorPlan1_physics")
    lacking = Simulator.of(Rooms(), unknown=frozenset({"Pass"}))
    assert lacking.handle({"action": "Pass"}).metadata["agents"][0]["errorCode"] == "InvalidAction"


def test_every_action_can_be_told_from_its_arguments() -> None:
    """An empty call fails in words, or works; it raises nothing."""
    for name in ACTIONS:
        agent = Bench(kitchen()).ask(name)
        assert agent["lastActionSuccess"] or agent["errorMessage"]


def test_questions_are_answered_by_patches_unless_that_is_off() -> None:
    assert Bench(kitchen()).answer("GetReachablePositions").patch.keys() == {
        "lastAction", "lastActionSuccess", "actionReturn", "errorCode", "errorMessage", "agentId",
    }  # fmt: skip
    assert Bench(kitchen()).answer("Pass").patch is None
    assert Bench(kitchen(), fastActionEmit=False).answer("GetReachablePositions").patch is None


def test_a_reset_forgets_the_house_and_the_settings(cook: Bench) -> None:
    cook.insist("AddThirdPartyCamera", position={"x": 0, "y": 2, "z": 0}, rotation={"x": 90, "y": 0, "z": 0})
    assert len(cook.insist("Pass")["thirdPartyCameras"]) == 1
    agent = cook.insist("Reset", sceneName="Procedural")
    assert agent["thirdPartyCameras"] == [] and agent["fov"] == 90.0
    assert not [one for one in agent["objects"] if one["pickupable"]]


# pictures


@pytest.fixture
def painter() -> Iterator[Callable[..., np.ndarray]]:
    simulator = Simulator.of(Rooms())
    simulator.handle({"action": "CreateHouse", "house": to_house(beside(kitchen()))})

    def see(action: str, **arguments: Any) -> np.ndarray:
        answer = simulator.handle({"action": action, **arguments})
        assert answer.metadata["agents"][0]["lastActionSuccess"] and answer.image is not None
        agent = answer.metadata["agents"][0]
        return np.frombuffer(answer.image, np.uint8).reshape(agent["screenHeight"], agent["screenWidth"], 3)[::-1]

    yield see


def test_pictures_show_what_is_there(painter: Callable[..., np.ndarray]) -> None:
    before = painter("Teleport", position={"x": 0, "y": 0.9, "z": 1.25}, rotation={"y": 180}, horizon=30)
    assert before.shape == (300, 300, 3) and len(np.unique(before.reshape(-1, 3), axis=0)) > 8
    assert (painter("Pass") == before).all()
    assert (painter("RotateRight") != before).any()
    assert (before[-1] == (158, 132, 104)).all(axis=1).sum() > 100  # the floor is below
    painter("RotateLeft")
    above = painter("ToggleMapView")
    assert (above != before).any() and (painter("ToggleMapView") == before).all()
    assert painter("ChangeResolution", x=64, y=48).shape == (48, 64, 3)


def test_only_wanted_pictures_are_drawn() -> None:
    simulator = Simulator.of(Rooms())
    assert simulator.first().image is not None
    assert simulator.handle({"action": "Pass", "renderImage": False}).image is None
    simulator.handle({"action": "Initialize", "renderImage": False})
    assert simulator.handle({"action": "Pass"}).image is None
    assert Simulator.of(Rooms(), images=False).first().image is None


def test_further_cameras_add_their_pictures() -> None:
    simulator = Simulator.of(Rooms())
    simulator.handle({"action": "CreateHouse", "house": to_house(kitchen())})
    camera = simulator.handle({"action": "GetMapViewCameraProperties"}).metadata["agents"][0]["actionReturn"]
    first = simulator.handle({"action": "AddThirdPartyCamera", **camera, "skyboxColor": "white"})
    assert len(first.others) == 1 and len(set(first.others[0])) > 8
    simulator.handle({"action": "AddThirdPartyCamera", "position": {"y": 2}, "rotation": {"x": 45}})
    assert len(simulator.handle({"action": "Pass"}).others) == 2
    moved = simulator.handle({"action": "UpdateThirdPartyCamera", "thirdPartyCameraId": 0, "orthographicSize": 2.0})
    assert moved.others[0] != first.others[0]


# faults


def test_faults_are_read_from_the_command_line(tmp_path: Any) -> None:
    specs = ["die-at-start", "hang:3", "error:4:InvalidAction", "no-action:Pass"]
    found = faults.parse(specs, tmp_path / "mark")
    assert found.starts("die-at-start") and not found.starts("hang-at-start")
    assert [found.at(number, "x") for number in (2, 3, 4)] == [("", ""), ("hang", ""), ("error", "InvalidAction")]
    assert found.unknown == {"Pass"} and (tmp_path / "mark").exists()
    assert not faults.parse(specs, tmp_path / "mark").starts("die-at-start")


@pytest.mark.parametrize("spec", ["die", "die:0", "die:x", "error:3", "fail:2:Code", "no-action:", "explode:1", ""])
def test_a_fault_nobody_knows_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="--help"):
        faults.parse([spec])


def test_a_bowl_on_the_floor_is_no_trouble() -> None:
    """Items of every kind that a scene may hold, in a room of one point."""
    bowl = Item("bowl_1", "Bowl", (0.0, 0.05, 0.0))
    bench = Bench(Scene("x", "kitchen", (bowl, inside("Egg", 1, bowl)), (0.0, 0.0), ((0.0, 0.0),)))
    assert bench.one("Egg")["parentReceptacles"] == [bench.id("Bowl")]
    assert bench.one("Bowl")["parentReceptacles"] == [bench.id("Floor")]
    bench.stand_at(bench.id("Egg"))
