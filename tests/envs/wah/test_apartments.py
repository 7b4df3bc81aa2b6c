"""Embedded apartments: no overlaps, plausible places of things, reproducibility, and disjoint splits."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations
from random import Random
from typing import Any

import pytest

from envs.splits import SPLITS, split_of, split_of_hash
from envs.wah.apartments.belongings import GOAL_OBJECTS, LIKELY
from envs.wah.apartments.catalog import KINDS, default_states, kind_of
from envs.wah.apartments.fitting import overlap
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import Apartment, apartment_seed, draw_apartment
from envs.wah.apartments.placing import likely_holders, place
from envs.wah.data.formats import read_graph
from envs.wah.graph import BETWEEN, INSIDE, ON, Box
from keep_agent.errors import ConfigError, DataError


@cache
def apartments() -> list[Apartment]:
    return [draw_apartment(None, Random(seed)) for seed in range(200)]


REQUIRED = ("fridge", "dishwasher", "kitchentable", "coffeetable", "kitchencabinet", "cabinet", "sofa", "bookshelf")
RELEVANT = {"GRABBABLE", "CONTAINERS", "SURFACES", "CAN_OPEN", "HAS_SWITCH"}
ROUNDING = 0.002  # metres

Row = dict[str, Any]


def _rows(apartment: Apartment) -> dict[int, Row]:
    return {row["id"]: row for row in apartment.graph["nodes"]}


def _box(row: Row) -> Box:
    return Box(tuple(row["bounding_box"]["center"]), tuple(row["bounding_box"]["size"]))


def _pairs(apartment: Apartment, relation: str) -> list[tuple[Row, Row]]:
    """Return pairs (thing, holder) of a relation, without rooms."""
    rows = _rows(apartment)
    pairs = [
        (rows[edge["from_id"]], rows[edge["to_id"]])
        for edge in apartment.graph["edges"]
        if edge["relation_type"] == relation
    ]
    return [(thing, holder) for thing, holder in pairs if holder["category"] != "Rooms"]


def _room_of(apartment: Apartment) -> dict[int, int]:
    rows = _rows(apartment)
    inside = [edge for edge in apartment.graph["edges"] if edge["relation_type"] == INSIDE]
    return {e["from_id"]: e["to_id"] for e in inside if rows[e["to_id"]]["category"] == "Rooms"}


def _within(inner: Box, outer: Box, slack: float = ROUNDING) -> bool:
    return all(abs(inner.center[i] - outer.center[i]) <= outer.size[i] / 2 + slack for i in range(3))


def test_same_seed_same_apartment_and_different_seed_different_apartment() -> None:
    assert draw_apartment(None, Random(7)) == apartments()[7]
    assert len({apartment.signature for apartment in apartments()}) == len(apartments())


def test_sizes() -> None:
    nodes = [len(apartment.graph["nodes"]) for apartment in apartments()]
    relevant = [sum(not RELEVANT.isdisjoint(row["properties"]) for row in a.graph["nodes"]) for a in apartments()]
    loose = [
        len({t["id"] for r in (INSIDE, ON) for t, _ in _pairs(a, r) if "GRABBABLE" in t["properties"]})
        for a in apartments()
    ]
    assert min(nodes) > 240 and max(nodes) < 400 and 290 < sum(nodes) / len(nodes) < 340
    assert min(relevant) > 120 and max(relevant) < 230
    assert min(loose) >= 40 and max(loose) <= 110


def test_furniture_varies() -> None:
    for kind in ("kitchencabinet", "kitchencounterdrawer", "bookshelf", "fridge", "coffeetable", "sofa", "desk"):
        counts = {sum(row["class_name"] == kind for row in a.graph["nodes"]) for a in apartments()}
        assert len(counts) > 1, kind
    orders = {tuple(r["class_name"] for r in a.graph["nodes"] if r["category"] == "Rooms") for a in apartments()}
    assert len(orders) > 15


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_required_furniture(index: int) -> None:
    counts = Counter(row["class_name"] for row in apartments()[index].graph["nodes"])
    assert all(counts[kind] >= 1 for kind in (*REQUIRED, "stove", "microwave", "sink", "bed", "toilet", "tv"))
    assert counts["dishwasher"] == counts["kitchentable"] == 1
    assert 2 <= counts["kitchencabinet"] <= 8 and counts["kitchencounterdrawer"] <= 8
    assert all(counts[room] == 1 for room in ROOMS)
    assert counts["lightswitch"] == counts["door"] == 4
    assert not counts.keys() & set(GOAL_OBJECTS)
    litter = Counter(t["class_name"] for r in (INSIDE, ON) for t, _ in _pairs(apartments()[index], r))
    assert all(litter[kind] <= 4 for kind in LIKELY)


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_nothing_overlaps_on_the_floor(index: int) -> None:
    rows, rooms = _rows(apartments()[index]), _room_of(apartments()[index])
    contents = {thing["id"] for relation in (INSIDE, ON) for thing, _ in _pairs(apartments()[index], relation)}
    on_floor_by_room: dict[int, list[Row]] = {}
    for node_id, room in rooms.items():
        row, box = rows[node_id], _box(rows[node_id])
        on_floor = abs(box.center[1] - box.size[1] / 2) < ROUNDING and node_id not in contents
        if on_floor and row["category"] in ("Furniture", "Appliances", "Electronics"):
            on_floor_by_room.setdefault(room, []).append(row)
    assert len(on_floor_by_room) == 4
    for room, pieces in on_floor_by_room.items():
        for piece in pieces:
            x, _, z = _box(piece).center
            assert _within(Box((x, 1.0, z), (0, 0, 0)), _box(rows[room]))
        for a, b in combinations(pieces, 2):
            assert not overlap(_box(a), _box(b)), (a, b)


def test_rooms_do_not_overlap() -> None:
    for apartment in apartments():
        rooms = [_box(row) for row in apartment.graph["nodes"] if row["category"] == "Rooms"]
        assert not any(overlap(a, b) for a, b in combinations(rooms, 2))
        for box in rooms:
            assert all(5 <= box.size[i] <= 8 for i in (0, 2)) and 2.5 <= box.size[1] <= 3
            assert box.center[1] * 2 == box.size[1]


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_things_lie_in_or_on_their_holder(index: int) -> None:
    apartment = apartments()[index]
    for thing, holder in _pairs(apartment, INSIDE):
        assert "CONTAINERS" in holder["properties"]
        assert _within(_box(thing), _box(holder)), (thing, holder)
    for thing, holder in _pairs(apartment, ON):
        assert "SURFACES" in holder["properties"] and holder["category"] != "Floor"
        box, top = _box(thing), _box(holder)
        assert abs(box.center[1] - box.size[1] / 2 - top.top) < ROUNDING
        assert _within(Box((box.center[0], top.center[1], box.center[2]), box.size), top), (thing, holder)


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_nodes_and_edges_are_well_formed(index: int) -> None:
    apartment = apartments()[index]
    rows, rooms = _rows(apartment), _room_of(apartment)
    assert [row["id"] for row in apartment.graph["nodes"]] == list(range(11, 11 + len(rows)))
    for row in rows.values():
        assert (row["id"] in rooms) == (row["category"] != "Rooms")
        assert row["states"] == list(default_states(row["class_name"]))
        assert row["properties"] == sorted(KINDS[row["class_name"]].properties)
        numbers = [*row["obj_transform"]["position"], *row["bounding_box"]["size"]]
        assert numbers == [round(number, 3) for number in numbers]
    blocks = [rooms.get(node_id, node_id) for node_id in rows]
    assert blocks == sorted(blocks), "a room's content follows the room"
    triples = [(e["from_id"], e["relation_type"], e["to_id"]) for e in apartment.graph["edges"]]
    assert len(set(triples)) == len(triples)
    assert {relation for _, relation, _ in triples} == {INSIDE, ON, BETWEEN}
    for relation in (INSIDE, ON):
        assert all(rooms[thing["id"]] == rooms[holder["id"]] for thing, holder in _pairs(apartment, relation))
    assert len(read_graph(apartment.graph).nodes) == len(rows)


@pytest.mark.parametrize("class_name", sorted(LIKELY))
def test_every_loose_thing_has_a_place(class_name: str) -> None:
    assert any(likely_holders(apartment.graph["nodes"], class_name) for apartment in apartments())
    for holder in LIKELY[class_name]:
        assert {"CONTAINERS", "SURFACES"} & set(kind_of(holder).properties)


@pytest.mark.parametrize("class_name", GOAL_OBJECTS)
def test_goal_objects_can_be_placed_in_every_likely_holder(class_name: str) -> None:
    for seed in range(10):
        apartment = draw_apartment(None, Random(seed))
        assert apartment == apartments()[seed]
        holders = likely_holders(apartment.graph["nodes"], class_name)
        assert len(holders) >= 3
        for holder in holders:
            last = apartment.graph["nodes"][-1]["id"]
            assert place(apartment.graph, class_name, holder, Random(1)) == last + 1
            thing, where = _rows(apartment)[last + 1], _rows(apartment)[holder]
            relation = next(r for r in (INSIDE, ON) if (thing, where) in _pairs(apartment, r))
            assert _room_of(apartment)[last + 1] == _room_of(apartment)[holder]
            on_top = where["class_name"] == "nightstand" or "CONTAINERS" not in where["properties"]
            assert relation == (ON if on_top else INSIDE)


def test_placing_avoids_overlaps() -> None:
    graph = draw_apartment(None, Random(3)).graph
    bed = next(row["id"] for row in graph["nodes"] if row["class_name"] == "bed")
    ids = {place(graph, "book", bed, Random(seed)) for seed in range(8)}
    boxes = [_box(row) for row in graph["nodes"] if row["id"] in ids]
    assert not any(overlap(a, b) for a, b in combinations(boxes, 2))


def test_placing_refuses_nodes_that_are_no_holders() -> None:
    graph = draw_apartment(None, Random(3)).graph
    by_class = {row["class_name"]: row["id"] for row in graph["nodes"]}
    for kind in ("floor", "wall", "kitchen", "toothbrush"):
        if kind in by_class:
            with pytest.raises(DataError, match=f"a {kind}; choose one of likely_holders"):
                place(graph, "apple", by_class[kind], Random(0))
    with pytest.raises(DataError, match="no node 9999"):
        place(graph, "apple", 9999, Random(0))
    with pytest.raises(DataError, match="no class 'dragon'"):
        place(graph, "dragon", by_class["sofa"], Random(0))


def test_splits_share_no_apartment() -> None:
    split_by_signature: dict[str, str] = {}
    for split in SPLITS:
        for index in range(15):
            seed = apartment_seed(split, index)
            apartment = draw_apartment(split, Random(seed))
            assert split_of(seed) == split_of_hash(apartment.signature) == split
            assert split_by_signature.setdefault(apartment.signature, split) == split
    assert {split_of_hash(apartment.signature) for apartment in apartments()} == set(SPLITS)


def test_unknown_splits_and_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        apartment_seed("dev", 0)
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        draw_apartment("dev", Random(0))
    with pytest.raises(DataError, match="outside"):
        apartment_seed("train", -1)


@pytest.mark.parametrize(
    ("class_name", "states"),
    [
        ("fridge", ("CLOSED",)), ("coffeemaker", ("OFF",)), ("dishwasher", ("CLOSED", "OFF")),
        ("kitchencabinet", ("CLOSED",)), ("door", ("OPEN",)), ("lightswitch", ("ON",)), ("tablelamp", ("ON",)),
        ("tv", ("OFF",)), ("sofa", ()), ("plate", ()),
    ],
)  # fmt: skip
def test_default_states(class_name: str, states: tuple[str, ...]) -> None:
    assert default_states(class_name) == states


def test_unknown_classes_are_refused() -> None:
    with pytest.raises(DataError, match="no class 'Fridge'"):
        default_states("Fridge")
