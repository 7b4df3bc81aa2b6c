"""Geometry of the stand-in for AI2-THOR: standing points, and visibility from a pose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import atan, atan2, ceil, degrees, dist, floor, hypot

from envs.alfred.scene import Position, Scene, xyz
from envs.alfred.state import floor_xz
from envs.alfred.thor_stub.traits import FLOOR_STANDING

GRID = 0.25  # metres
CLEARANCE = 0.25  # minimum metres between the agent and the middle of furniture
MARGIN = 0.5  # metres of floor around all things, so that each thing is within 1.2 m of a standing point
HEIGHT = 0.9  # metres; the y coordinate of the agent on an even floor
EYE_HEIGHTS = {True: 0.675, False: 0.0}  # metres from the agent's position up to its eye, by ``standing``
PITCH_MARGIN = 20.0  # degrees added to the view above and below, since things extend beyond their centre
YAW_MARGIN = 15.0  # degrees added left and right, so that four turns of 90 degrees see things in every direction
SEEN_RADIUS = 0.05  # metres on the floor plan; nearer things count as in front of the agent

Point = tuple[float, float]  # x, z


@dataclass(frozen=True, slots=True)
class AgentPose:
    """Pose of the agent in metres and degrees: ``rotation`` clockwise from the z axis, ``horizon`` downwards."""

    x: float = 0.0
    z: float = 0.0
    rotation: float = 0.0
    horizon: float = 0.0
    standing: bool = True
    y: float = HEIGHT

    @property
    def position(self) -> Position:
        return self.x, self.y, self.z

    @property
    def eye(self) -> Position:
        return self.x, self.y + EYE_HEIGHTS[self.standing], self.z


@dataclass(frozen=True, slots=True)
class Sight:
    """Range of a camera: ``reach`` in metres on the floor plan, and ``angle``, the whole field of view in degrees."""

    reach: float = 1.5
    angle: float = 90.0

    def faces(self, point: Point, rotation: float, target: Position, width: float) -> bool:
        """Return whether a thing ``width`` metres wide is in reach and between the view's left and right edge."""
        dx, dz = target[0] - point[0], target[2] - point[1]
        distance = hypot(dx, dz)
        if distance - width / 2 > self.reach:
            return False
        if distance < SEEN_RADIUS:
            return True
        offset = abs((degrees(atan2(dx, dz)) - rotation + 180.0) % 360.0 - 180.0)
        return offset <= self.angle / 2 + YAW_MARGIN + degrees(atan(width / 2 / distance))

    def contains_height(self, point: Point, height: float, horizon: float, target: Position) -> bool:
        """Return whether an eye at ``height`` metres, looking ``horizon`` degrees down, sees a target's height."""
        distance = hypot(target[0] - point[0], target[2] - point[1])
        pitch = degrees(atan2(height - target[1], distance))
        return abs(pitch - horizon) <= self.angle / 2 + PITCH_MARGIN

    def sees(self, body: AgentPose, target: Position, width: float) -> bool:
        point = body.x, body.z
        in_front = self.faces(point, body.rotation, target, width)
        return in_front and self.contains_height(point, body.eye[1], body.horizon, target)


def poses_seeing(
    sight: Sight, target: Position, width: float, positions: Sequence[Position], rotations: Sequence[float],
    horizons: Sequence[float], standings: Sequence[bool],
) -> Iterator[tuple[Position, float, float, bool]]:  # fmt: skip
    """Yield (position, rotation, horizon, standing) of the poses that see the target, in AI2-THOR's order."""
    facing = {turn: [at for at in positions if sight.faces(floor_xz(at), turn, target, width)] for turn in rotations}
    for horizon, standing, rotation in product(horizons, standings, rotations):
        for at in facing[rotation]:
            if sight.contains_height(floor_xz(at), at[1] + EYE_HEIGHTS[standing], horizon, target):
                yield at, rotation, horizon, standing


def floor_points(scene: Scene, known: Iterable[Point] = ()) -> tuple[Point, ...]:
    """Return the scene's standing points; if it lists none, the free grid points of its floor, and ``known``."""
    if scene.reachable:
        return scene.reachable
    places = [floor_xz(item.position) for item in scene.items] + [scene.agent]
    columns, rows = (_steps([place[axis] for place in places]) for axis in (0, 1))
    blocked = [floor_xz(item.position) for item in scene.items if item.type in FLOOR_STANDING]
    free = {(x, z) for x in columns for z in rows if all(dist((x, z), obstacle) >= CLEARANCE for obstacle in blocked)}
    return tuple(sorted(free.union(known)))


def _steps(values: list[float]) -> list[float]:
    first, last = floor((min(values) - MARGIN) / GRID), ceil((max(values) + MARGIN) / GRID)
    return [step * GRID for step in range(first, last + 1)]


def corners(center: Position, size: tuple[float, float, float]) -> list[list[float]]:
    """Return the eight corners of a box."""
    (x, y, z), (width, height, depth) = center, size
    return [
        [x + i * width / 2, y + j * height / 2, z + k * depth / 2] for i in (1, -1) for j in (1, -1) for k in (1, -1)
    ]


def box(center: Position, size: tuple[float, float, float]) -> dict[str, object]:
    """Return an axis-aligned box in the metadata's format."""
    return {"cornerPoints": corners(center, size), "center": xyz(center), "size": xyz(size)}


def vector(record: Mapping[str, float]) -> Position:
    """Parse a position in metadata; missing coordinates are 0."""
    return float(record.get("x", 0.0)), float(record.get("y", 0.0)), float(record.get("z", 0.0))
