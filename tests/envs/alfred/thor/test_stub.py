"""Stand-in for AI2-THOR, without its process: houses, messages, images, faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from envs.alfred.data.mining import official_id
from envs.alfred.scene import Item, ObjectPose, Scene, Start
from envs.alfred.thor_stub.house import KEY, from_house, to_house
from envs.alfred.thor_stub.protocol.channel import parse_faults
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.simulator import ACTIONS, Simulator
from keep_agent.errors import ConfigError, DataError
from tests.envs.alfred.rooms import bedroom, inside, kitchen, place
from tests.envs.alfred.thor.in_process import Record, Sim, beside

# houses


def test_a_house_survives_its_way_through_json(houses: list[Scene]) -> None:
    pose = ObjectPose("Mug_1234abcd", (1.0, 0.9, 2.0), (0.0, 90.0, 0.0))
    start = Start((pose,), (("DeskLamp", True),), True, (0.5, 0.9, 1.0), 90.0, 30.0)
    for scene in (*houses, kitchen(), bedroom(), replace(kitchen(), start=start)):
        assert from_house(json.loads(json.dumps(to_house(scene)))) == scene


@pytest.mark.parametrize("house", [{}, {"rooms": []}, {KEY: {"id": "x"}}, {KEY: 3}])
def test_a_house_in_another_format_is_refused(house: Record) -> None:
    with pytest.raises(DataError, match="to_house"):
        from_house(house)
    sim = Sim()
    assert "keep_agent" in sim.refusal("CreateHouse", house=house) or KEY in house
    assert not sim.objects("Mug") and sim.objects("Floor")


def test_things_have_ids_and_names_of_another_build() -> None:
    scene = replace(kitchen(), items=(*kitchen().items, place("Glassbottle", 1, 1, 1)))
    entries = Sim(scene).objects()
    ids = [entry["objectId"] for entry in entries]
    assert len(set(ids)) == len(ids)
    assert not {official_id(item.type, item.position) for item in scene.items} & set(ids)
    expected = ["Bottle" if item.type == "Glassbottle" else item.type for item in scene.items]
    assert [entry["objectType"] for entry in entries][: len(expected)] == expected
    kinds = {entry["objectType"] for entry in entries}
    assert {"Floor", "Window", "Chair", "LightSwitch", "StoveKnob", "Sink"} <= kinds
    basin = next(entry for entry in entries if entry["objectType"] == "SinkBasin")
    assert basin["objectId"] == "Sink|-03.99|+00.90|+00.00|SinkBasin"
    assert [entry["name"] for entry in entries] == [entry["name"] for entry in Sim(scene).objects()]


def test_nested_things_list_all_their_receptacles_also_on_the_floor() -> None:
    sim = Sim(kitchen())
    box, pencil, counter = sim.entry("Box"), sim.entry("Pencil"), sim.entry("CounterTop", 1)
    assert pencil["parentReceptacles"] == [box["objectId"], counter["objectId"]]
    assert counter["receptacleObjectIds"] == [box["objectId"], pencil["objectId"]]
    assert sim.entry("Potato")["parentReceptacles"] == [sim.id("Floor")]
    assert sim.entry("Fridge")["parentReceptacles"] is None
    assert sim.entry("Cabinet")["receptacleObjectIds"] == [sim.id("Mug")]
    assert sim.entry("Knife")["receptacleObjectIds"] is None
    # This room has one standing point, and only an egg in a bowl.
    bowl = Item("bowl_1", "Bowl", (0.0, 0.05, 0.0))
    sim = Sim(Scene("x", "kitchen", (bowl, inside("Egg", 1, bowl)), (0.0, 0.0), ((0.0, 0.0),)))
    assert sim.entry("Egg")["parentReceptacles"] == [sim.id("Bowl")]
    assert sim.entry("Bowl")["parentReceptacles"] == [sim.id("Floor")]
    sim.stand_at(sim.id("Egg"))


# messages


def test_unknown_actions_and_arguments_fail_with_a_message() -> None:
    sim = Sim()
    assert sim.ask("SetObjectToggles", objectToggles=[])["errorCode"] == "InvalidAction"
    wrong = sim.ask("PutObject", objectId="Mug|1|2|3", receptacleObjectId="Sink|1|2|3")
    assert wrong["errorCode"] == "InvalidArgument" and "'receptacleObjectId'" in wrong["errorMessage"]
    missing = sim.ask("OpenObject")
    assert missing["errorCode"] == "MissingArguments"
    assert missing["errorMessage"] == "action: OpenObject is missing the following arguments: objectId"
    assert sim.ask("Pass", renderImage=False, agentId=0)["errorCode"] == ""
    assert "is not the objectId" in sim.refusal("OpenObject", objectId="Mug|1|2|3")
    assert sim.refusal("Teleport", position=7).startswith("TypeError")
    assert "--data" in sim.refusal("Reset", sceneName="FloorPlan1_physics")
    lacking = Simulator.of(Rooms(), unknown=frozenset({"Pass"}))
    assert lacking.handle({"action": "Pass"}).metadata["agents"][0]["errorCode"] == "InvalidAction"
    # No action raises an exception.
    for name in ACTIONS:
        agent = Sim(kitchen()).ask(name)
        assert agent["lastActionSuccess"] or agent["errorMessage"]


def test_queries_are_answered_by_patches_if_the_settings_allow_it() -> None:
    assert Sim(kitchen()).answer("GetReachablePositions").patch.keys() == {
        "lastAction", "lastActionSuccess", "actionReturn", "errorCode", "errorMessage", "agentId",
    }  # fmt: skip
    assert Sim(kitchen()).answer("Pass").patch is None
    assert Sim(kitchen(), fastActionEmit=False).answer("GetReachablePositions").patch is None


def test_a_reset_removes_the_house_and_the_settings(sim: Sim) -> None:
    sim.require("AddThirdPartyCamera", position={"x": 0, "y": 2, "z": 0}, rotation={"x": 90, "y": 0, "z": 0})
    assert len(sim.require("Pass")["thirdPartyCameras"]) == 1
    agent = sim.require("Reset", sceneName="Procedural")
    assert agent["thirdPartyCameras"] == [] and agent["fov"] == 90.0
    assert not [entry for entry in agent["objects"] if entry["pickupable"]]


# images


@pytest.fixture
def painter() -> Iterator[Callable[..., np.ndarray]]:
    simulator = Simulator.of(Rooms())
    simulator.handle({"action": "CreateHouse", "house": to_house(beside(kitchen()))})

    def see(action: str, **arguments: Any) -> np.ndarray:
        reply = simulator.handle({"action": action, **arguments})
        assert reply.metadata["agents"][0]["lastActionSuccess"] and reply.image is not None
        agent = reply.metadata["agents"][0]
        return np.frombuffer(reply.image, np.uint8).reshape(agent["screenHeight"], agent["screenWidth"], 3)[::-1]

    yield see


def test_images_show_the_room(painter: Callable[..., np.ndarray]) -> None:
    before = painter("Teleport", position={"x": 0, "y": 0.9, "z": 1.25}, rotation={"y": 180}, horizon=30)
    assert before.shape == (300, 300, 3) and len(np.unique(before.reshape(-1, 3), axis=0)) > 8
    assert (painter("Pass") == before).all() and (painter("RotateRight") != before).any()
    assert (before[-1] == (158, 132, 104)).all(axis=1).sum() > 100  # the floor is below
    painter("RotateLeft")
    above = painter("ToggleMapView")
    assert (above != before).any() and (painter("ToggleMapView") == before).all()
    assert painter("ChangeResolution", x=64, y=48).shape == (48, 64, 3)


def test_only_requested_images_are_drawn_and_cameras_add_some() -> None:
    simulator = Simulator.of(Rooms())
    assert simulator.first_reply().image is not None
    assert simulator.handle({"action": "Pass", "renderImage": False}).image is None
    simulator.handle({"action": "Initialize", "renderImage": False})
    assert simulator.handle({"action": "Pass"}).image is None
    assert Simulator.of(Rooms(), images=False).first_reply().image is None
    simulator = Simulator.of(Rooms())
    simulator.handle({"action": "CreateHouse", "house": to_house(kitchen())})
    camera = simulator.handle({"action": "GetMapViewCameraProperties"}).metadata["agents"][0]["actionReturn"]
    first = simulator.handle({"action": "AddThirdPartyCamera", **camera, "skyboxColor": "white"})
    assert len(first.camera_images) == 1 and len(set(first.camera_images[0])) > 8
    simulator.handle({"action": "AddThirdPartyCamera", "position": {"y": 2}, "rotation": {"x": 45}})
    assert len(simulator.handle({"action": "Pass"}).camera_images) == 2
    zoomed = simulator.handle({"action": "UpdateThirdPartyCamera", "thirdPartyCameraId": 0, "orthographicSize": 2.0})
    assert zoomed.camera_images[0] != first.camera_images[0]


# faults


def test_faults_are_read_from_the_command_line(tmp_path: Any) -> None:
    specs = ["die-at-start", "hang:3", "error:4:InvalidAction", "no-action:Pass"]
    plan = parse_faults(specs, tmp_path / "mark")
    assert plan.occurs_at_start("die-at-start") and not plan.occurs_at_start("hang-at-start")
    assert [plan.fault_at(number, "x") for number in (2, 3, 4)] == [("", ""), ("hang", ""), ("error", "InvalidAction")]
    assert plan.unknown == {"Pass"} and (tmp_path / "mark").exists()
    assert not parse_faults(specs, tmp_path / "mark").occurs_at_start("die-at-start")


@pytest.mark.parametrize("spec", ["die", "die:0", "die:x", "error:3", "fail:2:Code", "no-action:", "explode:1", ""])
def test_an_unknown_fault_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="--help"):
        parse_faults([spec])
