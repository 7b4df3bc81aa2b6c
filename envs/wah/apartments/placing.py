"""Placing of things in VirtualHome's graph JSON: fixtures at given boxes, movable things in or on furniture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from envs.wah.apartments.belongings import LIKELY_PLACES, goes_inside
from envs.wah.apartments.catalog import ObjectClass, default_states, object_class
from envs.wah.apartments.fitting import overlaps, round_box
from envs.wah.graph import INSIDE, ON, ROOMS, Box, Vector
from keep_agent.errors import DataError

GraphJson = dict[str, list[dict[str, Any]]]
Row = dict[str, Any]

FIRST_ID = 11  # lower ids are for characters
BOARD_DISTANCE = 0.35  # metres between the boards of a container
_TRIES = 12


def add_node(graph: GraphJson, class_name: str, box: Box, links: Iterable[tuple[str, int]] = ()) -> int:
    """Append a node in its default state and return its id; ``links``: its relations as (type, target id)."""
    kind, nodes = object_class(class_name), graph["nodes"]
    node_id = nodes[-1]["id"] + 1 if nodes else FIRST_ID
    nodes.append(
        {
            "id": node_id, "category": kind.category, "class_name": class_name, "prefab_name": f"{class_name}_01",
            "obj_transform": {"position": list(box.center), "rotation": [0.0, 0.0, 0.0, 1.0], "scale": [1.0, 1.0, 1.0]},
            "bounding_box": {"center": list(box.center), "size": list(box.size)}, "properties": sorted(kind.properties),
            "states": list(default_states(class_name)),
        }
    )  # fmt: skip
    graph["edges"] += [{"from_id": node_id, "to_id": to, "relation_type": relation} for relation, to in links]
    return node_id


def likely_holders(rows: Iterable[Row], class_name: str) -> list[int]:
    """Return the ids of the nodes in ``rows`` that may hold a thing of the class."""
    classes = LIKELY_PLACES.get(class_name, ())
    return [row["id"] for row in rows if row["class_name"] in classes and _is_holder(row)]


def place(graph: GraphJson, class_name: str, holder_id: int, rng: Random) -> int:
    """Add a thing in or on a holder (furniture), without overlap if possible, and return the thing's id.

    Things are put inside a container. Exceptions: all things go on top of a nightstand, and pots and pans on a stove.
    Raises DataError for an unknown class or id, and for a node that cannot hold things.
    """
    holder, kind = _find(graph, holder_id), object_class(class_name)
    if not _is_holder(holder) or holder["category"] == "Floor":
        raise DataError(f"nothing can be put in or on a {holder['class_name']}; choose one of likely_holders")
    inside = "CONTAINERS" in holder["properties"] and goes_inside(class_name, holder["class_name"])
    room, obstacles = _surroundings(graph, holder_id)
    box = _free_box(_box(holder), kind, inside, obstacles, rng)
    return add_node(graph, class_name, box, [(INSIDE, room), (INSIDE if inside else ON, holder_id)])


def _find(graph: GraphJson, node_id: int) -> Row:
    for row in graph["nodes"]:
        if row["id"] == node_id:
            return row
    raise DataError(f"there is no node {node_id} in this graph of {len(graph['nodes'])} nodes")


def _is_holder(row: Row) -> bool:
    return not {"CONTAINERS", "SURFACES"}.isdisjoint(row["properties"])


def _box(row: Row) -> Box:
    box = row["bounding_box"]
    return Box(tuple(box["center"]), tuple(box["size"]))


def _surroundings(graph: GraphJson, holder_id: int) -> tuple[int, list[Box]]:
    """Return the room of a holder, and the boxes of the things in or on the holder."""
    outer = {edge["to_id"] for edge in graph["edges"] if edge["from_id"] == holder_id}
    contents = {edge["from_id"] for edge in graph["edges"] if edge["to_id"] == holder_id}
    rooms = [row["id"] for row in graph["nodes"] if row["category"] == ROOMS and row["id"] in outer]
    if not rooms:
        raise DataError(f"node {holder_id} is in no room; give it an INSIDE edge first")
    return rooms[0], [_box(row) for row in graph["nodes"] if row["id"] in contents]


def _free_box(holder: Box, kind: ObjectClass, inside: bool, obstacles: Sequence[Box], rng: Random) -> Box:
    """Draw a free box on top of the holder or on one of its boards. If no draw is free, return the last draw."""
    for _ in range(_TRIES):
        box = round_box(_draw_center(holder, kind.size, inside, rng), kind.size)
        if not any(overlaps(box, obstacle) for obstacle in obstacles):
            break
    return box


def _draw_center(holder: Box, size: Vector, inside: bool, rng: Random) -> Vector:
    (x, y, z), (width, height, depth) = holder.center, holder.size
    x += rng.uniform(-0.5, 0.5) * max(0.0, width - size[0])
    z += rng.uniform(-0.5, 0.5) * max(0.0, depth - size[2])
    if not inside:
        return x, holder.top + size[1] / 2, z
    board = rng.randrange(max(1, int(height / BOARD_DISTANCE))) * BOARD_DISTANCE
    return x, y - height / 2 + min(board + size[1] / 2, max(height / 2, height - size[1] / 2)), z


Goal = tuple[tuple[str, int], ...]
INSTANCES = (1, 1, 2, 2, 3)  # for each class, one of these is drawn as the minimum number of things


def lay_out(graph: GraphJson, goals: Sequence[Goal], rng: Random, distractors: Iterable[str] = ()) -> None:
    """Add the things that goals need, and one or more of each class in ``distractors``, to a graph without them.

    :raises DataError: a thing has no likely place
    """
    counts: dict[str, int] = {}
    banned: dict[str, set[str]] = {}
    for predicate, count in (condition for goal in goals for condition in goal):
        kind, thing, *place = predicate.split("_")
        if kind not in ("turnOn", "sit"):
            counts[thing] = max(counts.get(thing, 0), count)
            banned.setdefault(thing, set()).update(place)
    for thing in distractors:
        counts.setdefault(thing, 1)
    for thing in sorted(counts):
        _place_all(graph, thing, max(counts[thing], rng.choice(INSTANCES)), banned.get(thing, set()), rng)


def _place_all(graph: GraphJson, thing: str, count: int, banned: set[str], rng: Random) -> None:
    rows = {row["id"]: row for row in graph["nodes"]}
    kinds = {node_id: row["class_name"] for node_id, row in rows.items()}
    last = {kind: node_id for node_id, kind in kinds.items()}
    holders = [holder for holder in likely_holders(graph["nodes"], thing) if kinds[holder] not in banned]
    # the thing placed last must be reachable by LoTA-Bench's skills, which use only the last instance of each class
    reachable = [id for id in holders if "CLOSED" not in rows[id]["states"] or last[kinds[id]] == id]
    if not reachable:
        raise DataError(
            f"there is no place for a {thing} in this apartment of {len(rows)} nodes; use another apartment"
        )
    for number in range(count):
        candidates = holders if number + 1 < count else reachable
        kind = rng.choice(sorted({kinds[holder] for holder in candidates}))
        place(graph, thing, rng.choice([holder for holder in candidates if kinds[holder] == kind]), rng)
