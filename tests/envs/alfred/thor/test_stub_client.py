"""Stand-in for AI2-THOR as a process, driven by ai2thor's own controller over both servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai2thor.controller import Controller
from ai2thor.fifo_server import FifoServer
from ai2thor.server import Event
from ai2thor.wsgi_server import WsgiServer

from envs.alfred.data.trajectories import Corpus
from envs.alfred.scene import xyz
from envs.alfred.thor_stub.house import to_house
from tests.envs.alfred.rooms import kitchen
from tests.waiting import PATIENCE

STUB = [sys.executable, "-m", "envs.alfred.thor_stub"]
HOUSE = to_house(replace(kitchen(), agent=(0.0, 2.0)))


def controller(*flags: str, **settings: Any) -> Controller:
    command = " ".join([*STUB, *flags])
    limits = {"server_timeout": PATIENCE, "server_start_timeout": PATIENCE}
    arguments = {"scene": "Procedural", "x_display": ":0", "fieldOfView": 60, **limits, **settings}
    return Controller(local_executable_path=command, **arguments)


@pytest.fixture(scope="module", params=[FifoServer, WsgiServer], ids=["fifo", "wsgi"])
def shared(request: pytest.FixtureRequest) -> Iterator[Controller]:
    with controller(server_class=request.param) as process:
        yield process


@pytest.fixture
def client(shared: Controller) -> Controller:
    """Return the controller with the house in its start state."""
    assert shared.reset(HOUSE)
    return shared


def of(event: Event, kind: str) -> dict[str, Any]:
    return next(entry for entry in event.metadata["objects"] if entry["objectType"] == kind)


def go(client: Controller, kind: str) -> str:
    """Stand where an object is visible and return its id."""
    object_id: str = of(client.last_event, kind)["objectId"]
    poses = client.step("GetInteractablePoses", objectId=object_id, standings=[True]).metadata["actionReturn"]
    assert of(client.step("TeleportFull", **poses[0]), kind)["visible"]
    return object_id


def test_a_breakfast_by_hand(client: Controller) -> None:
    assert client.step("PickupObject", objectId=go(client, "Knife"))
    apple = go(client, "Apple")
    assert client.step("SliceObject", objectId=apple)
    assert of(client.last_event, "AppleSliced")["objectId"] == f"{apple}|AppleSliced_0"
    assert client.step("PutObject", objectId=go(client, "CounterTop"))
    cabinet = go(client, "Cabinet")
    assert client.step("OpenObject", objectId=cabinet)
    assert client.step("PickupObject", objectId=go(client, "Mug"))
    assert client.step("PutObject", objectId=go(client, "SinkBasin"))
    assert client.step("ToggleObjectOn", objectId=go(client, "Faucet"))
    assert of(client.last_event, "Mug")["parentReceptacles"] == [of(client.last_event, "SinkBasin")["objectId"]]


def test_images_arrive(client: Controller) -> None:
    go(client, "Fridge")
    frame = client.last_event.frame
    assert frame.shape == (300, 300, 3) and len(np.unique(frame.reshape(-1, 3), axis=0)) > 4
    assert (frame[0] != frame[-1]).any(axis=1).all()  # the floor is at the bottom
    camera = client.step("GetMapViewCameraProperties").metadata["actionReturn"]
    frames = client.step("AddThirdPartyCamera", **camera).third_party_camera_frames
    assert len(frames) == 1 and len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 4
    client.reset(HOUSE)
    assert not client.last_event.third_party_camera_frames


def test_wrong_actions_are_reported(client: Controller) -> None:
    assert not client.step("PickupObject", objectId=of(client.last_event, "Mug")["objectId"])
    assert client.last_event.metadata["errorMessage"].startswith("NullReferenceException: Target object not found")
    with pytest.raises(ValueError, match="Invalid action: SetObjectToggles"):
        client.step("SetObjectToggles", objectToggles=[])
    with pytest.raises(ValueError, match="receptacleObjectId"):
        client.step("PutObject", objectId="x", receptacleObjectId="y")
    with pytest.raises(RuntimeError, match="is not the objectId"):
        client.step("OpenObject", objectId="x", raise_for_failure=True)
    assert not client.reset({"rooms": []}) and client.step("Pass")


def test_queries_change_nothing_else(client: Controller) -> None:
    before = client.step("Pass").metadata
    answer = client.step("GetReachablePositions").metadata
    assert len(answer["actionReturn"]) > 100 and answer["lastAction"] == "GetReachablePositions"
    same = ("objects", "agent", "screenWidth", "sceneName")
    assert {key: answer[key] for key in same} == {key: before[key] for key in same}


def test_headless_and_small() -> None:
    with controller(headless=True) as client:
        assert client.last_event.frame is None and client.reset(HOUSE)
    with controller(width=160, height=120) as client:
        assert client.last_event.frame.shape == (120, 160, 3)


def test_a_floor_plan_of_the_data_set(alfred_data: Path) -> None:
    trial = Corpus(alfred_data).trajectories("valid_seen")[0]
    with controller("--data", str(alfred_data), scene=trial.floor_plan) as client:
        assert len(client.scenes_in_build) > 100
        event = client.last_event
        assert event.metadata["sceneName"] == f"{trial.floor_plan}_physics"
        names = {entry["objectType"]: entry["name"] for entry in event.metadata["objects"]}
        kinds = {pose.type for pose in trial.start.objects}
        assert kinds - {"Glassbottle"} <= names.keys()
        poses = [
            {"objectName": names[pose.type], "position": xyz(pose.position), "rotation": xyz(pose.rotation)}
            for pose in trial.start.objects
            if pose.type in names
        ]
        event = client.step("SetObjectPoses", objectPoses=poses)
        assert event, event.metadata["errorMessage"]
        present = [entry["objectType"] for entry in event.metadata["objects"] if entry["pickupable"]]
        assert sorted(present) == sorted(pose.type for pose in trial.start.objects if pose.type in names)
        start = trial.start
        assert client.step("Teleport", position=xyz(start.agent), rotation=start.rotation, horizon=start.horizon)
        with pytest.raises(ValueError, match="not contained in build"):
            client.reset("FloorPlan999")
