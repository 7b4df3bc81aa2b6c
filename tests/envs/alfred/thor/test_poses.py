"""Poses from which a thing can be used, with and without the build's answer."""

from __future__ import annotations

from typing import Any

import pytest

from envs.alfred.thor.client import Reply
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.poses import CLOSEST, Pose, Poses

POINTS = [{"x": x / 4, "y": 0.9, "z": z / 4} for x in range(-12, 13) for z in range(-12, 13)]
TARGET = (0.1, 0.9, 2.0)


class Build:
    """Answers GetInteractablePoses with a given reply."""

    def __init__(self, ok: bool = True, value: Any = None, unknown: bool = False) -> None:
        self.reply = Reply(ok, "", value, {}, None, unknown=unknown)
        self.requests: list[dict[str, Any]] = []

    def __call__(self, action: str, **arguments: Any) -> Reply:
        assert action == "GetInteractablePoses"
        self.requests.append(arguments)
        return self.reply


def poses(build: Build, points: Any = POINTS) -> list[Pose]:
    return Poses(ThorOptions(), build, points).towards("Mug|1", TARGET)


def test_the_build_gets_the_nearest_points_and_the_turns_that_face_the_thing() -> None:
    build = Build(value=[])
    poses(build)
    (request,) = build.requests
    assert request["objectId"] == "Mug|1" and request["standings"] == [True] and len(request["positions"]) == CLOSEST
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
    assert len(ranked) == CLOSEST and (ranked[0].x, ranked[0].z) == (0.0, 2.0)
    ahead = next(pose for pose in ranked if (pose.x, pose.z) == (0.0, 1.75))
    assert (ahead.rotation, ahead.horizon) == (0.0, 60.0)  # the eyes are higher than the thing


def test_a_build_without_the_action_gets_it_once() -> None:
    build = Build(ok=False, unknown=True)
    source = Poses(ThorOptions(), build, POINTS)
    for _ in range(3):
        source.towards("Mug|1", TARGET)
    assert len(build.requests) == 1


def test_a_thing_far_from_all_points_gets_the_nearest_one() -> None:
    assert len(poses(Build(value=[]), [{"x": 50.0, "y": 0.9, "z": 0.0}])) == 1
    assert poses(Build(value=[]), []) == []
