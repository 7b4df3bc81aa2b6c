"""Layout of a rectangular room: positions of a `Blueprint`'s furniture (units), and the agent's standing points."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from envs.alfred.houses.rooms import BLUEPRINTS, Unit
from envs.alfred.scene import Position

GRID = 0.25  # metres between standing points, as in AI2-THOR
REACH = 1.3  # maximum metres from a fixture to the nearest standing point
MIN_POINTS = 16
CLEARANCE = 0.2  # minimum metres between agent and furniture

Point = tuple[float, float]
Rect = tuple[float, float, float, float]  # x0, z0, x1, z1


@dataclass(frozen=True, slots=True)
class House:
    """A furnished room without objects: fixtures as (type, position) and standing points (x, z)."""

    room: str
    fixtures: tuple[tuple[str, Position], ...]
    reachable: tuple[Point, ...]

    @property
    def signature(self) -> str:
        """SHA-256 of the room type and of the fixtures with their positions: different for different houses."""
        return hashlib.sha256(repr((self.room, sorted(self.fixtures))).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Wall:
    """Wall as a frame of reference: origin, direction along it, direction into the room, length in metres."""

    origin: Point
    along: Point
    inward: Point
    length: float

    def point(self, along: float, depth: float) -> Point:
        x = self.origin[0] + self.along[0] * along + self.inward[0] * depth
        z = self.origin[1] + self.along[1] * along + self.inward[1] * depth
        return round(x, 2), round(z, 2)

    def rect(self, start: float, unit: Unit) -> Rect:
        (ax, az), (bx, bz) = self.point(start, 0.0), self.point(start + unit.width, unit.depth)
        return min(ax, bx), min(az, bz), max(ax, bx), max(az, bz)


def _walls(room: Rect) -> list[_Wall]:
    x0, z0, x1, z1 = room
    return [
        _Wall((x0, z0), (1, 0), (0, 1), x1 - x0),
        _Wall((x1, z0), (0, 1), (-1, 0), z1 - z0),
        _Wall((x1, z1), (-1, 0), (0, -1), x1 - x0),
        _Wall((x0, z1), (0, -1), (1, 0), z1 - z0),
    ]


def _overlaps(a: Rect, b: Rect, gap: float) -> bool:
    return a[0] < b[2] + gap and b[0] < a[2] + gap and a[1] < b[3] + gap and b[1] < a[3] + gap


def _inside(point: Point, rect: Rect, gap: float) -> bool:
    return rect[0] - gap < point[0] < rect[2] + gap and rect[1] - gap < point[1] < rect[3] + gap


def _steps(low: float, high: float) -> list[float]:
    first, last = int(low / GRID), int(high / GRID)
    return [i * GRID for i in range(first, last + 1) if low <= i * GRID <= high]


class _Placement:
    """Attempt to fit a blueprint into a room of a given size."""

    def __init__(self, room: Rect, rng: Random) -> None:
        self.room = room
        self.rng = rng
        self.rects: list[Rect] = []
        self.fixtures: list[tuple[str, Position]] = []

    def _add(self, unit: Unit, rect: Rect, wall: _Wall, start: float) -> None:
        self.rects.append(rect)
        for part in unit.parts:
            x, z = wall.point(start + part.along, part.depth)
            self.fixtures.append((part.type, (x, part.height, z)))

    def against_a_wall(self, unit: Unit) -> bool:
        walls = _walls(self.room)
        self.rng.shuffle(walls)
        for wall in walls:
            slots = _steps(0.0, wall.length - unit.width)
            shift = round(self.rng.uniform(0.0, GRID), 2)
            for start in self.rng.sample(slots, len(slots)):
                start = min(start + shift, wall.length - unit.width)
                rect = wall.rect(start, unit)
                if not any(_overlaps(rect, neighbor, 0.02) for neighbor in self.rects):
                    self._add(unit, rect, wall, start)
                    return True
        return False

    def in_the_middle(self, unit: Unit) -> bool:
        x0, z0, x1, z1 = self.room
        for _ in range(20):
            ax = round(self.rng.uniform(x0 + 0.7, x1 - 0.7 - unit.width), 2) if x1 - x0 > unit.width + 1.5 else x1
            az = round(self.rng.uniform(z0 + 0.7, z1 - 0.7 - unit.depth), 2) if z1 - z0 > unit.depth + 1.5 else z1
            rect = (ax, az, ax + unit.width, az + unit.depth)
            if rect[2] < x1 and rect[3] < z1 and not any(_overlaps(rect, neighbor, 0.55) for neighbor in self.rects):
                self._add(unit, rect, _Wall((ax, az), (1, 0), (0, 1), unit.width), 0.0)
                return True
        return False

    def reachable(self) -> list[Point]:
        """Return the standing points of the largest connected free area, sorted."""
        x0, z0, x1, z1 = self.room
        free = {
            (x, z)
            for x in _steps(x0 + GRID, x1 - GRID)
            for z in _steps(z0 + GRID, z1 - GRID)
            if not any(_inside((x, z), rect, CLEARANCE) for rect in self.rects)
        }
        return sorted(max(_components(free), key=lambda part: (len(part), min(part)), default=set()))


def _components(points: set[Point]) -> Iterator[set[Point]]:
    remaining = set(points)
    while remaining:
        component, frontier = set(), [min(remaining)]
        while frontier:
            point = frontier.pop()
            if point in remaining:
                remaining.remove(point)
                component.add(point)
                x, z = point
                frontier += [(x + GRID, z), (x - GRID, z), (x, z + GRID), (x, z - GRID)]
        yield component


def furnish(room: str, rng: Random) -> House:
    """Draw furniture, and place it in a room just large enough for the agent to reach every fixture."""
    blueprint = BLUEPRINTS[room](rng)
    widest_first = sorted(blueprint.walls, key=lambda unit: -unit.width)
    side = max(2.75, sum(unit.width for unit in blueprint.walls) / 3.2) + 0.5 * len(blueprint.middle)
    ratio = rng.uniform(0.8, 1.25)
    x0, z0 = (round(rng.uniform(-4.0, 1.0) / GRID) * GRID for _ in range(2))
    while True:
        width, depth = round(side * ratio, 2), round(side / ratio, 2)
        placement = _Placement((x0, z0, x0 + width, z0 + depth), rng)
        fits = all(map(placement.against_a_wall, widest_first)) and all(map(placement.in_the_middle, blueprint.middle))
        points = placement.reachable() if fits else []
        if len(points) >= MIN_POINTS and all(
            any((x - px) ** 2 + (z - pz) ** 2 <= REACH**2 for px, pz in points) for _, (x, _, z) in placement.fixtures
        ):
            fixtures = sorted(placement.fixtures, key=lambda fixture: fixture[0])  # keeps the order within a type
            return House(room, tuple(fixtures), tuple(points))
        side += GRID
