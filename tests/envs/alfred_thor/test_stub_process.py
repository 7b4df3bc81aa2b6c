"""The stand-in as a process: driven by ai2thor's own controller over both its servers, and by hand where it misbehaves."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from ai2thor.controller import Controller
from ai2thor.fifo_server import FifoServer
from ai2thor.server import Event
from ai2thor.wsgi_server import WsgiServer
from platformdirs import user_cache_path

from envs.alfred.thor_stub.house import to_house
from envs.alfred.trajectories import Corpus
from tests.envs.rooms import kitchen

STUB = [sys.executable, "-m", "envs.alfred.thor_stub"]
HOUSE = to_house(replace(kitchen(), agent=(0.0, 2.0)))
HEADER = struct.Struct("!BI")
SOON = 5.0  # seconds


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The client keeps its log at home; what was mined from data stays where it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(user_cache_path()))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


def controller(*flags: str, **settings: Any) -> Controller:
    command = " ".join([*STUB, *flags])
    limits = {"server_timeout": 20, "server_start_timeout": 20}
    arguments = {"scene": "Procedural", "x_display": ":0", "fieldOfView": 60, **limits, **settings}
    return Controller(local_executable_path=command, **arguments)


@pytest.fixture(scope="module", params=[FifoServer, WsgiServer], ids=["fifo", "wsgi"])
def shared(request: pytest.FixtureRequest) -> Iterator[Controller]:
    with controller(server_class=request.param) as found:
        yield found


@pytest.fixture
def client(shared: Controller) -> Controller:
    """With the house as it is at first."""
    assert shared.reset(HOUSE)
    return shared


def of(event: Event, kind: str) -> dict[str, Any]:
    return next(one for one in event.metadata["objects"] if one["objectType"] == kind)


def go(client: Controller, kind: str) -> str:
    """Stand where it is seen; its id."""
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


def test_pictures_arrive(client: Controller) -> None:
    go(client, "Fridge")
    frame = client.last_event.frame
    assert frame.shape == (300, 300, 3) and len(np.unique(frame.reshape(-1, 3), axis=0)) > 4
    assert (frame[0] != frame[-1]).any(axis=1).all()  # the floor is at the bottom
    camera = client.step("GetMapViewCameraProperties").metadata["actionReturn"]
    seen = client.step("AddThirdPartyCamera", **camera).third_party_camera_frames
    assert len(seen) == 1 and len(np.unique(seen[0].reshape(-1, 3), axis=0)) > 4
    client.reset(HOUSE)
    assert not client.last_event.third_party_camera_frames


def test_what_is_wrong_is_said(client: Controller) -> None:
    assert not client.step("PickupObject", objectId=of(client.last_event, "Mug")["objectId"])
    assert client.last_event.metadata["errorMessage"].startswith("NullReferenceException: Target object not found")
    with pytest.raises(ValueError, match="Invalid action: SetObjectToggles"):
        client.step("SetObjectToggles", objectToggles=[])
    with pytest.raises(ValueError, match="receptacleObjectId"):
        client.step("PutObject", objectId="x", receptacleObjectId="y")
    with pytest.raises(RuntimeError, match="is not the objectId"):
        client.step("OpenObject", objectId="x", raise_for_failure=True)
    assert not client.reset({"rooms": []})
    assert client.step("Pass")


def test_questions_leave_everything_else_as_it_was(client: Controller) -> None:
    before = client.step("Pass").metadata
    asked = client.step("GetReachablePositions").metadata
    assert len(asked["actionReturn"]) > 100 and asked["lastAction"] == "GetReachablePositions"
    same = ("objects", "agent", "screenWidth", "sceneName")
    assert {key: asked[key] for key in same} == {key: before[key] for key in same}


def test_objects_can_be_put_elsewhere(client: Controller) -> None:
    egg = of(client.last_event, "Egg")
    poses = [{"objectName": egg["name"], "position": {"x": 0.2, "y": 0.95, "z": 0.0}, "rotation": egg["rotation"]}]
    assert client.step("SetObjectPoses", objectPoses=poses, placeStationary=True)
    assert of(client.last_event, "Egg")["parentReceptacles"] == [of(client.last_event, "CounterTop")["objectId"]]
    assert [one["objectType"] for one in client.last_event.metadata["objects"] if one["pickupable"]] == ["Egg"]
    assert client.step("PickupObject", objectId=go(client, "Egg"))


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
        names = {one["objectType"]: one["name"] for one in event.metadata["objects"]}
        kinds = {pose.type for pose in trial.start.objects}
        assert kinds - {"Glassbottle"} <= names.keys()
        poses = [
            {"objectName": names[pose.type], "position": xyz(pose.position), "rotation": xyz(pose.rotation)}
            for pose in trial.start.objects
            if pose.type in names
        ]
        event = client.step("SetObjectPoses", objectPoses=poses)
        assert event, event.metadata["errorMessage"]
        there = [one["objectType"] for one in event.metadata["objects"] if one["pickupable"]]
        assert sorted(there) == sorted(pose.type for pose in trial.start.objects if pose.type in names)
        start = trial.start
        assert client.step("Teleport", position=xyz(start.agent), rotation=start.rotation, horizon=start.horizon)
        with pytest.raises(ValueError, match="not contained in build"):
            client.reset("FloorPlan999")


def xyz(numbers: tuple[float, ...]) -> dict[str, float]:
    return dict(zip("xyz", numbers, strict=True))


# without the client: what it does wrong when asked to, and how it ends


class Talk:
    """The client's end of two pipes, with a clock."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.paths = [folder / "server.pipe", folder / "client.pipe"]
        for path in self.paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        self.process = subprocess.Popen([*STUB, *flags, "-batchmode"], env=environment(folder), stderr=subprocess.PIPE)
        self.incoming = os.open(self.paths[0], os.O_RDONLY | os.O_NONBLOCK)
        self.outgoing = -1

    def read(self, size: int) -> bytes:
        """So many bytes; fewer when the process has ended, or says nothing for a while."""
        found, deadline = b"", time.monotonic() + SOON
        while len(found) < size and time.monotonic() < deadline:
            gone = self.process.poll() is not None
            if select.select([self.incoming], [], [], 0.02)[0]:
                with suppress(BlockingIOError):
                    found += os.read(self.incoming, size - len(found))
            if gone:
                break
        return found

    def message(self) -> tuple[list[bytes], bool]:
        """(bodies of the records, whether it was whole)"""
        bodies: list[bytes] = []
        while len(head := self.read(HEADER.size)) == HEADER.size:
            kind, length = HEADER.unpack(head)
            if kind == 255:
                return bodies, True
            bodies.append(self.read(length))
        return bodies, False

    def ask(self, action: str, **arguments: Any) -> tuple[list[bytes], bool]:
        if self.outgoing < 0:
            self.outgoing = os.open(self.paths[1], os.O_WRONLY)
        body = json.dumps({"action": action, "sequenceId": 5, **arguments}).encode()
        os.write(self.outgoing, HEADER.pack(2, len(body)) + body + HEADER.pack(255, 0))
        return self.message()

    def metadata(self, action: str, **arguments: Any) -> dict[str, Any]:
        (body, *_), whole = self.ask(action, **arguments)
        assert whole
        found: dict[str, Any] = msgpack.loads(body)
        return found

    def hang_up(self) -> None:
        for pipe in (self.incoming, self.outgoing):
            if pipe >= 0:
                os.close(pipe)
        self.incoming = self.outgoing = -1


def environment(folder: Path) -> dict[str, str]:
    pipes = {f"AI2THOR_FIFO_{name.upper()}_PIPE_PATH": str(folder / f"{name}.pipe") for name in ("server", "client")}
    return {**os.environ, **pipes, "AI2THOR_SERVER_TYPE": "FIFO"}


@contextmanager
def talk(folder: Path, *flags: str) -> Iterator[Talk]:
    found = Talk(folder, *flags)
    try:
        yield found
    finally:
        found.hang_up()
        found.process.kill()
        found.process.communicate()


def test_it_ends_when_the_client_hangs_up(tmp_path: Path) -> None:
    with talk(tmp_path) as client:
        assert client.message()[1] and client.metadata("Pass")["sequenceId"] == 5
        client.hang_up()
        assert client.process.wait(SOON) == 0


def test_it_ends_when_it_hangs_and_the_client_hangs_up(tmp_path: Path) -> None:
    with talk(tmp_path, "--fault", "hang-at-start") as client:
        assert not select.select([client.incoming], [], [], 0.6)[0] or client.read(1) == b""
        assert client.process.poll() is None
        client.hang_up()
        assert client.process.wait(SOON) == 0


@pytest.mark.parametrize("kind", ["FIFO", "WSGI"])
def test_it_ends_when_its_parent_is_gone_before_anything_was_said(kind: str, tmp_path: Path) -> None:
    for name in ("server", "client"):
        os.mkfifo(tmp_path / f"{name}.pipe")
    code = f"import subprocess; print(subprocess.Popen({STUB!r}, stdout=subprocess.DEVNULL).pid)"
    given = {**environment(tmp_path), "AI2THOR_SERVER_TYPE": kind, "AI2THOR_HOST": "127.0.0.1", "AI2THOR_PORT": "9"}
    parent = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    deadline = time.monotonic() + SOON
    while running(int(parent.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(int(parent.stdout))


def running(number: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("fault", ["die-before-pipe", "die-at-start", "die-before-actions"])
def test_it_dies_at_the_start(fault: str, tmp_path: Path) -> None:
    with talk(tmp_path, "--fault", fault) as client:
        assert client.message()[1] == (fault == "die-before-actions")
        assert client.process.wait(SOON) == 3


def test_it_fails_at_the_named_actions(tmp_path: Path) -> None:
    specs = ("error:2:InvalidAction", "fail:3", "sequence:4", "garbage:5", "no-action:Done", "die-half:7")
    with talk(tmp_path, *(word for spec in specs for word in ("--fault", spec))) as client:
        client.message()
        answers = [client.metadata("Pass") for _ in range(4)]
        agents = [answer["agents"][0] for answer in answers]
        assert [agent["lastActionSuccess"] for agent in agents] == [True, False, False, True]
        assert (agents[1]["errorCode"], agents[1]["errorMessage"]) == ("InvalidAction", "injected")
        assert (agents[2]["errorCode"], agents[2]["errorMessage"]) == ("", "")
        assert [answer["sequenceId"] for answer in answers] == [5, 5, 5, 12]
        (body,), whole = client.ask("Pass")
        with pytest.raises(ValueError):
            msgpack.loads(body)
        assert whole and client.metadata("Done")["agents"][0]["errorMessage"] == "Invalid action: Done"
        bodies, whole = client.ask("Pass")
        assert bodies and not whole and client.process.wait(SOON) == 3


def test_a_fault_once(tmp_path: Path) -> None:
    flags = ("--fault", "die:1", "--once", str(tmp_path / "mark"))
    with talk(tmp_path, *flags) as client:
        client.message()
        assert not (tmp_path / "mark").exists()
        assert client.ask("Pass") == ([], False) and client.process.wait(SOON) == 3
    assert (tmp_path / "mark").exists()
    with talk(tmp_path, *flags) as client:
        client.message()
        assert client.metadata("Pass")["agents"][0]["lastActionSuccess"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fault", "explode"], "--help lists them"),
        (["--data", "/no/such/folder"], "does not exist"),
        ([], "no client"),
    ],
)
def test_it_says_what_it_cannot_start_with(flags: list[str], message: str) -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("AI2THOR")}
    result = subprocess.run([*STUB, *flags], env=bare, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and message in result.stderr
