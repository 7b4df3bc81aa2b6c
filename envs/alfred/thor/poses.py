"""From where a thing can be used: the build's own answer, or what geometry says where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import atan2, degrees, dist, hypot
from typing import Any

from envs.alfred.scene import Position
from envs.alfred.thor.client import Reply
from envs.alfred.thor.options import ThorOptions

EYES = 0.675  # metres from the agent's position up to its camera
HORIZONS = (-30.0, 0.0, 30.0, 60.0)  # degrees, as AI2-THOR allows them; down is positive
CLOSEST = 12  # standing points asked about
MARGIN = 1.0  # metres a thing may reach out from its own position towards the agent


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the agent stands and looks; degrees."""

    x: float
    y: float
    z: float
    rotation: float
    horizon: float

    def arguments(self) -> dict[str, Any]:
        """Of Teleport."""
        return {
            "position": {"x": self.x, "y": self.y, "z": self.z},
            "rotation": {"x": 0, "y": self.rotation, "z": 0},
            "horizon": self.horizon,
            "standing": True,
        }


class Poses:
    """Of one room. Remembers whether the build knows GetInteractablePoses."""

    def __init__(self, options: ThorOptions, ask: Callable[..., Reply], points: Iterable[Mapping[str, float]]) -> None:
        """``points`` are standing points, as GetReachablePositions returns them."""
        self._reach = options.visibility
        self._ask = ask
        self._asks = True
        self.points: list[Position] = sorted((point["x"], point["y"], point["z"]) for point in points or ())

    def towards(self, object_id: str, target: Position) -> list[Pose]:
        """Poses from which an object can be used, the nearest first: those the build names, else all that could do."""
        near = self._near(target)
        answer = self._interactable(object_id, near, target) if self._asks and near else None
        poses = [pose for point in near for pose in _facing(point, target)] if answer is None else answer
        return sorted(poses, key=lambda pose: _rank(pose, target))

    def _near(self, target: Position) -> list[Position]:
        ranked = sorted((_aside(point, target), point) for point in self.points)
        within = [point for distance, point in ranked if distance <= self._reach + MARGIN]
        return within[:CLOSEST] or [point for _, point in ranked[:1]]

    def _interactable(self, object_id: str, points: Sequence[Position], target: Position) -> list[Pose] | None:
        """The build's answer; None if it has none."""
        turns = sorted({_turn(point, target) for point in points})
        reply = self._ask(
            "GetInteractablePoses",
            objectId=object_id,
            positions=[{"x": x, "y": y, "z": z} for x, y, z in points],
            rotations=turns,
            horizons=list(HORIZONS),
            standings=[True],
        )
        if not reply.ok:
            self._asks = not reply.unknown
            return None
        return [Pose(*(float(one[key]) for key in ("x", "y", "z", "rotation", "horizon"))) for one in reply.value or ()]


def _aside(point: Position, target: Position) -> float:
    return dist((point[0], point[2]), (target[0], target[2]))


def _bearing(point: Position, target: Position) -> float:
    return degrees(atan2(target[0] - point[0], target[2] - point[2])) % 360


def _turn(point: Position, target: Position) -> float:
    """The quarter turn that faces the target best."""
    return round(_bearing(point, target) / 90) % 4 * 90.0


def _pitch(point: Position, target: Position) -> float:
    """Degrees down to the target."""
    aside = _aside(point, target)
    return degrees(atan2(point[1] + EYES - target[1], max(aside, 0.01)))


def _facing(point: Position, target: Position) -> Iterator[Pose]:
    """One pose at a point, looking at the target as straight as the horizons allow."""
    horizon = min(HORIZONS, key=lambda one: abs(one - _pitch(point, target)))
    yield Pose(*point, _turn(point, target), horizon)


def _rank(pose: Pose, target: Position) -> tuple[float, float, float, float]:
    """The nearest standing point, then the one that looks most straight at the target."""
    point = (pose.x, pose.y, pose.z)
    turned = abs((pose.rotation - _bearing(point, target) + 180) % 360 - 180)
    tilted = abs(pose.horizon - _pitch(point, target))
    return round(hypot(pose.x - target[0], pose.z - target[2]), 3), pose.x, pose.z, turned + tilted
