"""Generator of apartments in VirtualHome's vocabulary: four furnished rooms with everyday things.

An apartment depends only on the split and the random number generator. Each split has its own range of seeds, and
accepts an apartment only if the hash of its furniture belongs to the split. So no apartment is in two splits.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from envs.splits import check_split, seed_of, split_of_hash
from envs.wah.apartments.belongings import GOAL_OBJECTS, LIKELY_PLACES
from envs.wah.apartments.catalog import CLASSES
from envs.wah.apartments.fitting import THICKNESS, Fixture, fit, round_box, shell
from envs.wah.apartments.furniture import ROOMS, furnishing
from envs.wah.apartments.placing import GraphJson, Row, add_node, likely_holders, place
from envs.wah.graph import BETWEEN, INSIDE, Box

SIDES = (5.0, 8.0)  # metres: range of a room's width and depth
HEIGHTS = (2.5, 3.0)  # metres
# Range of the number of loose things in a room (its clutter).
CLUTTER_RANGES: Mapping[str, tuple[int, int]] = {
    "kitchen": (22, 44), "livingroom": (16, 28), "bedroom": (12, 22), "bathroom": (8, 14),
}  # fmt: skip
COPIES = (1, 1, 1, 2, 2, 3, 4)  # one is drawn as the maximum number of a room's loose things of a portable class
_CLUTTER = tuple(kind for kind in LIKELY_PLACES if kind not in GOAL_OBJECTS)
# A room's clutter has at most one thing of any class that is not portable.
_PORTABLE = frozenset(kind for kind in _CLUTTER if "GRABBABLE" in CLASSES[kind].properties)


@dataclass(frozen=True, slots=True)
class Apartment:
    """An apartment. ``graph``: VirtualHome's JSON, nodes and edges; ``signature``: hash of furniture and its places."""

    graph: GraphJson
    signature: str


@dataclass(frozen=True, slots=True)
class _Room:
    kind: str
    box: Box
    fixtures: tuple[Fixture, ...]


def apartment_seed(split: str, index: int) -> int:
    """Return the seed of a split's apartment number ``index``; splits share neither seeds nor apartments."""
    return seed_of(split, index, "apartment")


def draw_apartment(split: str | None, rng: Random) -> Apartment:
    """Draw an apartment of a split (None: of any split), without things of the classes `GOAL_OBJECTS`."""
    if split is not None:
        check_split(split, "apartment")
    while True:
        rooms = _furnish(rng)
        signature = _signature(rooms)
        if split in (None, split_of_hash(signature)):
            return Apartment(_build(rooms, rng), signature)


def _signature(rooms: Sequence[_Room]) -> str:
    """Hash the furniture with its places."""
    fixtures = [fixture for room in rooms for fixture in (Fixture(room.kind, room.box), *room.fixtures)]
    content = [(fixture.kind, fixture.box.center, fixture.box.size) for fixture in fixtures]
    return hashlib.sha256(repr(content).encode()).hexdigest()


# plan: the rooms in a row, a door from each to the next, the front door at the end


def _furnish(rng: Random) -> list[_Room]:
    boxes = _boxes(rng)
    doors = _doors(boxes, rng)
    clearances = [round_box(door.center, (2.0, door.size[1], 1.1)) for door in doors]
    kinds = rng.sample(ROOMS, len(ROOMS))
    return [
        _Room(kind, box, (*_fixtures(kind, box, clearances, rng), Fixture("door", door), _doorjamb(door)))
        for kind, box, door in zip(kinds, boxes, doors, strict=True)
    ]


def _boxes(rng: Random) -> list[Box]:
    height, x = round(rng.uniform(*HEIGHTS), 1), 0.0
    boxes = []
    for _ in ROOMS:
        width, depth = round(rng.uniform(*SIDES), 1), round(rng.uniform(*SIDES), 1)
        boxes.append(round_box((x + width / 2, height / 2, depth / 2), (width, height, depth)))
        x += width + 2 * THICKNESS
    return boxes


def _doors(boxes: Sequence[Box], rng: Random) -> list[Box]:
    width, height, depth = CLASSES["door"].size
    doors = []
    for box, following in zip(boxes, (*boxes[1:], boxes[-1]), strict=True):
        z = rng.uniform(1.0, min(box.size[2], following.size[2]) - 1.0)
        x = box.center[0] + box.size[0] / 2 + THICKNESS
        doors.append(round_box((x, height / 2, z), (depth, height, width)))
    return doors


def _doorjamb(door: Box) -> Fixture:
    width, height, depth = CLASSES["doorjamb"].size
    x, _, z = door.center
    return Fixture("doorjamb", round_box((x, height / 2, z), (depth, height, width)))


def _fixtures(kind: str, box: Box, clearances: Sequence[Box], rng: Random) -> list[Fixture]:
    """Draw content until it fits; usually the first draw fits, since rooms have at least 25 square metres."""
    while True:
        fixtures = fit(furnishing(kind, rng), box, clearances, rng)
        if fixtures is not None:
            return fixtures


# graph


def _build(rooms: Sequence[_Room], rng: Random) -> GraphJson:
    graph: GraphJson = {"nodes": [], "edges": []}
    counts: Counter[str] = Counter()
    ids = [_add_room(graph, room, counts, rng) for room in rooms]
    doors = [row["id"] for row in graph["nodes"] if row["class_name"] == "door"]
    for door, this, following in zip(doors, ids, ids[1:], strict=False):
        graph["edges"] += [{"from_id": door, "to_id": room, "relation_type": BETWEEN} for room in (this, following)]
    return graph


def _add_room(graph: GraphJson, room: _Room, counts: Counter[str], rng: Random) -> int:
    """Add a room with fixtures and loose things; return its id. Updates ``counts``, the clutter by class."""
    first = len(graph["nodes"])
    room_id = add_node(graph, room.kind, room.box)
    for fixture in shell(room.box):
        add_node(graph, fixture.kind, fixture.box, [(INSIDE, room_id)])
    ids: list[int] = []
    for fixture in room.fixtures:
        holder = [] if fixture.holder is None else [(fixture.relation, ids[fixture.holder])]
        ids.append(add_node(graph, fixture.kind, fixture.box, [(INSIDE, room_id), *holder]))
    _add_clutter(graph, graph["nodes"][first:], rng.randint(*CLUTTER_RANGES[room.kind]), counts, rng)
    return room_id


def _add_clutter(graph: GraphJson, furniture: Sequence[Row], total: int, counts: Counter[str], rng: Random) -> None:
    """Place up to ``total`` things in or on a room's furniture, at most ``max(COPIES)`` of a class per apartment."""
    for kind in rng.sample(_CLUTTER, len(_CLUTTER)):
        holders = likely_holders(furniture, kind)
        most = min(max(COPIES) - counts[kind], total) if holders else 0
        copies = min(most, rng.choice(COPIES) if kind in _PORTABLE else 1)
        total, counts[kind] = total - copies, counts[kind] + copies
        for _ in range(copies):
            place(graph, kind, rng.choice(holders), rng)
