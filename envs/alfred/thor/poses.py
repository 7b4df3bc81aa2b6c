"""Poses from which the agent can use a thing: listed by AI2-THOR (GetInteractablePoses), else computed by geometry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import atan2, degrees, dist, hypot
from typing import Any

from envs.alfred.scene import Position, xyz
from envs.alfred.thor.client import Reply
from envs.alfred.thor.options import ThorOptions

EYE_HEIGHT = 0.675  # metres from the agent's position up to its camera
HORIZONS = (-30.0, 0.0, 30.0, 60.0)  # camera angles that AI2-THOR allows, in degrees; down is positive
MAX_POINTS = 12  # maximum number of standing points considered per thing
MARGIN = 1.0  # metres; the largest distance from a thing's position to its edge


@dataclass(frozen=True, slots=True)
class Pose:
    """Position in metres, and angles in degrees: ``rotation`` clockwise from the z axis, ``horizon`` downwards."""

    x: float
    y: float
    z: float
    rotation: float
    horizon: float

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of Teleport."""
        return {
            "position": xyz((self.x, self.y, self.z)),
            "rotation": xyz((0, self.rotation, 0)),
            "horizon": self.horizon,
            "standing": True,
        }


class PoseFinder:
    """Finder of poses in one room. It remembers whether the build (AI2-THOR's executable) has GetInteractablePoses."""

    def __init__(self, options: ThorOptions, ask: Callable[..., Reply], points: Iterable[Mapping[str, float]]) -> None:
        """Store the standing points, in GetReachablePositions' format; ``ask`` executes a query action."""
        self._reach = options.visibility
        self._ask = ask
        self._has_query = True
        self.points: list[Position] = sorted((point["x"], point["y"], point["z"]) for point in points or ())

    def poses_for(self, object_id: str, target: Position) -> list[Pose]:
        """Return poses from which the agent can use an object; if the build reports none, compute one per near point.

        First comes the best pose of each standing point, nearest point first; then the second best of each, and so on.
        """
        by_distance = sorted((_floor_distance(point, target), point) for point in self.points)
        within = [point for distance, point in by_distance if distance <= self._reach + MARGIN]
        near = within[:MAX_POINTS] or [point for _, point in by_distance[:1]]
        poses = self._interactable(object_id, near, target) if self._has_query and near else []
        ranked = sorted(poses or [_facing(point, target) for point in near], key=lambda pose: _rank(pose, target))
        return _points_first(ranked)

    def _interactable(self, object_id: str, points: Sequence[Position], target: Position) -> list[Pose]:
        """Return the poses that the build reports; empty if it reports none, or lacks the action."""
        turns = sorted({_quarter_turn(point, target) for point in points})
        reply = self._ask(
            "GetInteractablePoses",
            objectId=object_id,
            positions=list(map(xyz, points)),
            rotations=turns,
            horizons=list(HORIZONS),
            standings=[True],
        )
        if not reply.ok:
            self._has_query = not reply.unknown
            return []
        keys = ("x", "y", "z", "rotation", "horizon")
        return [Pose(*(float(pose[key]) for key in keys)) for pose in reply.value or ()]


def _floor_distance(point: Position, target: Position) -> float:
    return dist((point[0], point[2]), (target[0], target[2]))


def _bearing(point: Position, target: Position) -> float:
    return degrees(atan2(target[0] - point[0], target[2] - point[2])) % 360


def _quarter_turn(point: Position, target: Position) -> float:
    """Return the multiple of 90 degrees that best faces the target."""
    return round(_bearing(point, target) / 90) % 4 * 90.0


def _pitch(point: Position, target: Position) -> float:
    """Return the angle from the agent's eye down to the target, in degrees."""
    distance = _floor_distance(point, target)
    return degrees(atan2(point[1] + EYE_HEIGHT - target[1], max(distance, 0.01)))


def _facing(point: Position, target: Position) -> Pose:
    """Return the pose at a point that faces the target as well as quarter turns and `HORIZONS` allow."""
    horizon = min(HORIZONS, key=lambda angle: abs(angle - _pitch(point, target)))
    return Pose(*point, _quarter_turn(point, target), horizon)


def _rank(pose: Pose, target: Position) -> tuple[float, float, float, float]:
    """Return the sort key: nearer standing points first, and at each point straighter views of the target first."""
    point = (pose.x, pose.y, pose.z)
    yaw_error = abs((pose.rotation - _bearing(point, target) + 180) % 360 - 180)
    pitch_error = abs(pose.horizon - _pitch(point, target))
    return round(hypot(pose.x - target[0], pose.z - target[2]), 3), pose.x, pose.z, yaw_error + pitch_error


def _points_first(ranked: Sequence[Pose]) -> list[Pose]:
    """Sort poses by their rank at their point, so that far points are tried early: some doors open only from there."""
    counts: Counter[tuple[float, float]] = Counter()
    turns: list[tuple[int, Pose]] = []
    for pose in ranked:
        turns.append((counts[pose.x, pose.z], pose))
        counts[pose.x, pose.z] += 1
    return [pose for _, pose in sorted(turns, key=lambda turn: turn[0])]
