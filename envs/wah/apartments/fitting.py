"""Placement of furniture in a rectangular room without overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from envs.wah.apartments.catalog import CLASSES
from envs.wah.apartments.furniture import Furnishing, Piece
from envs.wah.graph import INSIDE, ON, Box, Vector

GAP = 0.03  # metres between pieces along the walls
PASSAGE = 0.4  # metres around furniture in the middle of the room
TILE = 2.5  # metres: approximate size of the tiles of floors and ceilings
PANEL = 2.0  # metres: approximate width of the panels of walls
THICKNESS = 0.1  # metres of floors, walls and ceilings, which lie outside the room's box
_TRIES = 24

# Height of the middle of things on walls, in metres.
_WALL_HEIGHTS: Mapping[str, float] = {
    "bathroomcabinet": 1.6, "kitchencabinet": 1.8, "lightswitch": 1.2, "powersocket": 0.3, "stovefan": 1.9,
    "towelrack": 1.2, "walllamp": 1.9, "wallphone": 1.5, "wallpictureframe": 1.6, "wallshelf": 1.5, "window": 1.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fixture:
    """A placed thing. If ``holder`` is set, it is ON or INSIDE (``relation``) the room's fixture with this index."""

    kind: str
    box: Box
    holder: int | None = None
    relation: str = ""


@dataclass(frozen=True, slots=True)
class Wall:
    """Frame of reference of a wall: lower corner, axis along the wall (0: x, 2: z), sign of the direction inwards."""

    corner: Vector
    axis: int
    inward: int
    length: float  # metres

    def box(self, along: float, height: float, depth: float, size: Vector) -> Box:
        """Return the box of a thing whose middle is ``along`` the wall, ``height`` up, ``depth`` inwards, in metres."""
        x, _, z = self.corner
        if self.axis == 0:
            return round_box((x + along, height, z + self.inward * depth), size)
        return round_box((x + self.inward * depth, height, z + along), (size[2], size[1], size[0]))


def round_box(center: Vector, size: Vector) -> Box:
    """Return a box rounded to millimetres."""
    (x, y, z), (width, height, depth) = center, size
    return Box((round(x, 3), round(y, 3), round(z, 3)), (round(width, 3), round(height, 3), round(depth, 3)))


def overlaps(a: Box, b: Box, gap: float = 0.0) -> bool:
    """Return whether two boxes overlap in height, and along both x and z overlap or are nearer than ``gap`` metres."""
    (ax, ay, az), (aw, ah, ad), (bx, by, bz), (bw, bh, bd) = a.center, a.size, b.center, b.size
    return abs(ax - bx) * 2 < aw + bw + gap * 2 and abs(az - bz) * 2 < ad + bd + gap * 2 and abs(ay - by) * 2 < ah + bh


def walls_of(room: Box) -> tuple[Wall, Wall, Wall, Wall]:
    """Return the walls at low z, high z, low x and high x."""
    x0, y0, z0 = (room.center[i] - room.size[i] / 2 for i in range(3))
    width, _, depth = room.size
    return (
        Wall((x0, y0, z0), 0, 1, width), Wall((x0, y0, z0 + depth), 0, -1, width), Wall((x0, y0, z0), 2, 1, depth),
        Wall((x0 + width, y0, z0), 2, -1, depth),
    )  # fmt: skip


def shell(room: Box) -> Iterator[Fixture]:
    """Yield the tiles of the floor and ceiling, and the panels of the walls."""
    (x, _, z), (width, height, depth) = room.center, room.size
    columns, rows = max(1, round(width / TILE)), max(1, round(depth / TILE))
    tile = (width / columns, THICKNESS, depth / rows)
    for kind, y in (("floor", -THICKNESS / 2), ("ceiling", height + THICKNESS / 2)):
        for i in range(columns * rows):
            across, back = i % columns + 0.5, i // columns + 0.5
            yield Fixture(kind, round_box((x - width / 2 + across * tile[0], y, z - depth / 2 + back * tile[2]), tile))
    for wall in walls_of(room):
        panels = max(1, round(wall.length / PANEL))
        size = (wall.length / panels, height, THICKNESS)
        for i in range(panels):
            yield Fixture("wall", wall.box((i + 0.5) * size[0], height / 2, -THICKNESS / 2, size))


def fit(content: Furnishing, room: Box, clearances: Sequence[Box], rng: Random) -> list[Fixture] | None:
    """Place all furniture; return None if a piece does not fit. ``clearances``: boxes of doorways to keep free."""
    fitting = _Fitting(room, clearances, rng)
    widest_first = sorted(content.walls, key=lambda piece: -CLASSES[piece.kind].size[0])
    if not all(fitting.against_a_wall(piece) for piece in widest_first):
        return None
    if not all(fitting.anywhere_in_the_room(piece) for piece in content.middle):
        return None
    for kind in content.on_walls:
        fitting.add_on_wall(kind)
    for i, kind in enumerate(content.overhead):
        fitting.add_overhead(kind, (i + 0.5) / len(content.overhead))
    return fitting.fixtures


class _Fitting:
    """Attempt to place a room's content."""

    def __init__(self, room: Box, clearances: Sequence[Box], rng: Random) -> None:
        self.room = room
        self.walls = walls_of(room)
        self.rng = rng
        self.occupied = list(clearances)
        self.fixtures: list[Fixture] = []

    def _free(self, box: Box, gap: float) -> bool:
        return not any(overlaps(box, obstacle, gap) for obstacle in self.occupied)

    def _add(self, kind: str, box: Box, holder: int | None = None, relation: str = "") -> int:
        self.fixtures.append(Fixture(kind, box, holder, relation))
        return len(self.fixtures) - 1

    def against_a_wall(self, piece: Piece) -> bool:
        size = CLASSES[piece.kind].size
        for _ in range(_TRIES):
            wall = self.rng.choice(self.walls)
            start = self.rng.uniform(0.0, wall.length - size[0])
            box = wall.box(start + size[0] / 2, size[1] / 2, size[2] / 2, size)
            if self._free(box, GAP):
                self._put(piece, box, replace(wall, corner=_shifted(wall, start, 0.0), length=size[0]))
                return True
        return False

    def anywhere_in_the_room(self, piece: Piece) -> bool:
        """Place a piece anywhere in the room: a rug may lie under things, other pieces need a passage around them."""
        width, height, depth = CLASSES[piece.kind].size
        flat = piece.kind == "rug"
        wall = self.rng.choice(self.walls)
        across = (self.room.size[2] if wall.axis == 0 else self.room.size[0]) - depth
        for _ in range(_TRIES * 4):
            start, away = self.rng.uniform(0.0, wall.length - width), self.rng.uniform(0.0, across)
            box = wall.box(start + width / 2, height / 2, away + depth / 2, (width, height, depth))
            if flat or self._free(box, PASSAGE):
                self._put(piece, box, replace(wall, corner=_shifted(wall, start, away), length=width), not flat)
                return True
        return False

    def _put(self, piece: Piece, box: Box, spot: Wall, takes_space: bool = True) -> None:
        """Add a piece and its parts; ``spot`` is the frame of reference of its back, as if that were a wall."""
        depth, index = CLASSES[piece.kind].size[2], self._add(piece.kind, box)
        if takes_space:
            self.occupied.append(box)
        for kind, along in _side_by_side(piece.on, spot.length):
            size = CLASSES[kind].size
            self._add(kind, spot.box(along, box.top + size[1] / 2, depth / 2, size), index, ON)
        holder = (index, INSIDE) if "CONTAINERS" in CLASSES[piece.kind].properties else ()
        for kind, along in _side_by_side(piece.within, spot.length):
            self._add(kind, spot.box(along, box.center[1], depth / 2, CLASSES[kind].size), *holder)
        self._above(piece, spot)
        for kind in piece.beside:
            self._beside(kind, spot, depth)

    def _above(self, piece: Piece, spot: Wall) -> None:
        """Add the things on the wall above a piece, before other things on walls can take their places."""
        for kind, along in _side_by_side(piece.above, spot.length):
            size = CLASSES[kind].size
            box = spot.box(along, _WALL_HEIGHTS[kind], size[2] / 2, size)
            self.occupied.append(box)
            self._add(kind, box)

    def _beside(self, kind: str, spot: Wall, depth: float) -> None:
        """Add a thing in front of, behind or beside a piece; omit it if no place is free."""
        width, height, thickness = size = CLASSES[kind].size
        front, back = depth + GAP * 2 + thickness / 2, -GAP * 2 - thickness / 2
        ends = (-GAP * 2 - width / 2, spot.length + GAP * 2 + width / 2)
        sides = [(spot.length * share, away) for away in (front, back) for share in (0.25, 0.5, 0.75)]
        for along, away in sides + [(end, depth / 2) for end in ends]:
            box = spot.box(along, height / 2, away, size)
            if self._within(box) and self._free(box, GAP):
                self.occupied.append(box)
                self._add(kind, box)
                return

    def _within(self, box: Box) -> bool:
        return all(abs(box.center[i] - self.room.center[i]) * 2 <= self.room.size[i] - box.size[i] for i in (0, 2))

    def add_on_wall(self, kind: str) -> None:
        """Add a thing on a wall: at a free place, else at the last place tried. Windows hang only at low or high z."""
        size, height = CLASSES[kind].size, _WALL_HEIGHTS[kind]
        for _ in range(_TRIES):
            wall = self.rng.choice(self.walls[:2] if kind == "window" else self.walls)
            along = self.rng.uniform(size[0] / 2, wall.length - size[0] / 2)
            box = wall.box(along, height, size[2] / 2, size)
            if self._free(box, GAP):
                break
        self.occupied.append(box)
        self._add(kind, box)
        if kind == "window":
            self._add("curtains", wall.box(along, height, size[2] * 1.5, CLASSES["curtains"].size))

    def add_overhead(self, kind: str, share: float) -> None:
        """Add a thing under the ceiling, at ``share`` (0 to 1) of the room's extent along x."""
        (x, _, z), (width, height, _) = self.room.center, self.room.size
        size = CLASSES[kind].size
        self._add(kind, round_box((x + (share - 0.5) * width, height - size[1] / 2, z), size))


def _shifted(wall: Wall, along: float, depth: float) -> Vector:
    x, y, z = wall.corner
    if wall.axis == 0:
        return x + along, y, z + wall.inward * depth
    return x + wall.inward * depth, y, z + along


def _side_by_side(kinds: Sequence[str], length: float) -> Iterator[tuple[str, float]]:
    """Yield classes with the positions of their middles, in metres, along ``length`` metres with equal gaps."""
    widths = [CLASSES[kind].size[0] for kind in kinds]
    gap = (length - sum(widths)) / (len(kinds) + 1)
    along = 0.0
    for kind, width in zip(kinds, widths, strict=True):
        yield kind, along + gap + width / 2
        along += gap + width
