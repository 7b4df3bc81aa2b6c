"""From where a thing can be used, with and without the build's help."""

from __future__ import annotations

from typing import Any

import pytest

from envs.alfred.thor.client import Reply
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.poses import CLOSEST, Pose, Poses

POINTS = [{"x": x / 4, "y": 0.9, "z": z / 4} for x in range(-12, 13) for z in range(-12, 13)]
TARGET = (0.1, 0.9, 2.0)


class Build:
    """Answers GetInteractablePoses with what it is given."""

    def __init__(self, ok: bool = True, value: Any = None, unknown: bool = False) -> None:
        self.reply = Reply(ok, "", value, {}, None, unknown=unknown)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, action: str, **arguments: Any) -> Reply:
        assert action == "GetInteractablePoses"
        self.asked.append(arguments)
        return self.reply


def poses(build: Build, points: Any = POINTS) -> list[Pose]:
    return Poses(ThorOptions(), build, points).towards("Mug|1", TARGET)


def test_the_build_is_asked_about_the_nearest_points_and_turns_that_face_the_thing() -> None:
    build = Build(value=[])
    poses(build)
    (asked,) = build.asked
    assert asked["objectId"] == "Mug|1" and asked["standings"] == [True] and len(asked["positions"]) == CLOSEST
    assert all(abs(one["x"]) <= 0.75 and abs(one["z"] - 2) <= 0.75 for one in asked["positions"])
    assert set(asked["rotations"]) <= {0.0, 90.0, 180.0, 270.0} and min(asked["horizons"]) >= -30


def test_the_nearest_points_come_first_each_with_its_straightest_pose() -> None:
    def found(x: float, z: float, rotation: float, horizon: float) -> dict[str, Any]:
        return {"x": x, "y": 0.9, "z": z, "rotation": rotation, "standing": True, "horizon": horizon}

    answer = [found(0, 1, 0, -30), found(0, 1.5, 90, 0), found(0, 1.5, 0, 60), found(0, 1.5, 0, 30), found(0, 1, 0, 30)]
    ranked = poses(Build(value=answer))
    assert [(one.z, one.rotation, one.horizon) for one in ranked] == [
        (1.5, 0, 60), (1, 0, 30), (1.5, 0, 30), (1, 0, -30), (1.5, 90, 0),
    ]  # fmt: skip
    assert ranked[0].arguments()["rotation"] == {"x": 0, "y": 0, "z": 0}


@pytest.mark.parametrize("build", [Build(ok=False), Build(ok=False, unknown=True), Build(value=[]), Build()])
def test_geometry_says_where_the_build_does_not(build: Build) -> None:
    ranked = poses(build)
    assert len(ranked) == CLOSEST and (ranked[0].x, ranked[0].z) == (0.0, 2.0)
    ahead = next(one for one in ranked if (one.x, one.z) == (0.0, 1.75))
    assert (ahead.rotation, ahead.horizon) == (0.0, 60.0)  # the eyes are higher than the thing


def test_a_build_without_the_action_is_asked_once() -> None:
    build = Build(ok=False, unknown=True)
    asking = Poses(ThorOptions(), build, POINTS)
    for _ in range(3):
        asking.towards("Mug|1", TARGET)
    assert len(build.asked) == 1


def test_far_from_everything_there_is_still_one_point() -> None:
    assert len(poses(Build(value=[]), [{"x": 50.0, "y": 0.9, "z": 0.0}])) == 1
    assert poses(Build(value=[]), []) == []
