"""Embedded apartments: no overlaps, plausible places of things, reproducibility, and disjoint splits."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations
from random import Random

import pytest

from envs.splits import SPLITS, split_of, split_of_hash
from envs.wah.apartments.belongings import GOAL_OBJECTS, LIKELY_PLACES
from envs.wah.apartments.catalog import CLASSES, default_states, object_class
from envs.wah.apartments.fitting import overlaps
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import Apartment, apartment_seed, draw_apartment
from envs.wah.apartments.placing import likely_holders, place
from envs.wah.data.formats import read_graph
from envs.wah.graph import BETWEEN, INSIDE, ON, Box, Graph, Node
from keep_agent.errors import ConfigError, DataError


@cache
def apartments() -> list[Apartment]:
    return [draw_apartment(None, Random(seed)) for seed in range(200)]


REQUIRED = ("fridge", "dishwasher", "kitchentable", "coffeetable", "kitchencabinet", "cabinet", "sofa", "bookshelf")
RELEVANT = {"GRABBABLE", "CONTAINERS", "SURFACES", "CAN_OPEN", "HAS_SWITCH"}
ROUNDING = 0.002  # metres


@cache
def graphs() -> list[Graph]:
    return [read_graph(apartment.graph) for apartment in apartments()]


def _pairs(graph: Graph, *relations: str) -> list[tuple[Node, Node]]:
    """Return pairs (thing, holder) of some relations, without rooms."""
    pairs = [(graph[thing], graph[holder]) for thing, relation, holder in graph.edges() if relation in relations]
    return [(thing, holder) for thing, holder in pairs if holder.category != "Rooms"]


def _room_of(graph: Graph) -> dict[int, int]:
    return {a: b for a, relation, b in graph.edges() if relation == INSIDE and graph[b].category == "Rooms"}


def _within(inner: Box, outer: Box, slack: float = ROUNDING) -> bool:
    return all(abs(inner.center[i] - outer.center[i]) <= outer.size[i] / 2 + slack for i in range(3))


def test_same_seed_same_apartment_and_different_seed_different_apartment() -> None:
    assert draw_apartment(None, Random(7)) == apartments()[7]
    assert len({apartment.signature for apartment in apartments()}) == len(apartments())


def test_sizes() -> None:
    nodes = [len(graph.nodes) for graph in graphs()]
    relevant = [sum(not RELEVANT.isdisjoint(node.properties) for node in graph.nodes.values()) for graph in graphs()]
    loose = [len({thing.id for thing, _ in _pairs(graph, INSIDE, ON) if thing.grabbable}) for graph in graphs()]
    assert min(nodes) > 240 and max(nodes) < 400 and 290 < sum(nodes) / len(nodes) < 340
    assert min(relevant) > 120 and max(relevant) < 230
    assert min(loose) >= 40 and max(loose) <= 110


def test_furniture_varies() -> None:
    for kind in ("kitchencabinet", "kitchencounterdrawer", "bookshelf", "fridge", "coffeetable", "sofa", "desk"):
        assert len({len(graph.of_class(kind)) for graph in graphs()}) > 1, kind
    orders = {tuple(n.class_name for n in graph.nodes.values() if n.category == "Rooms") for graph in graphs()}
    assert len(orders) > 15


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_required_furniture(index: int) -> None:
    counts = Counter(node.class_name for node in graphs()[index].nodes.values())
    assert all(counts[kind] >= 1 for kind in (*REQUIRED, "stove", "microwave", "sink", "bed", "toilet", "tv"))
    assert counts["dishwasher"] == counts["kitchentable"] == 1
    assert 2 <= counts["kitchencabinet"] <= 8 and counts["kitchencounterdrawer"] <= 8
    assert all(counts[room] == 1 for room in ROOMS)
    assert counts["lightswitch"] == counts["door"] == 4
    assert not counts.keys() & set(GOAL_OBJECTS)
    litter = Counter(thing.class_name for thing, _ in _pairs(graphs()[index], INSIDE, ON))
    assert all(litter[kind] <= 4 for kind in LIKELY_PLACES)


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_nothing_overlaps_on_the_floor(index: int) -> None:
    graph = graphs()[index]
    contents = {thing.id for thing, _ in _pairs(graph, INSIDE, ON)}
    on_floor_by_room: dict[int, list[Box]] = {}
    for number, room in _room_of(graph).items():
        box = graph[number].box
        on_floor = abs(box.center[1] - box.size[1] / 2) < ROUNDING and number not in contents
        if on_floor and graph[number].category in ("Furniture", "Appliances", "Electronics"):
            on_floor_by_room.setdefault(room, []).append(box)
    assert len(on_floor_by_room) == 4
    for room, boxes in on_floor_by_room.items():
        for box in boxes:
            assert _within(Box((box.center[0], 1.0, box.center[2]), (0, 0, 0)), graph[room].box)
        for a, b in combinations(boxes, 2):
            assert not overlaps(a, b), (a, b)


def test_rooms_do_not_overlap() -> None:
    for graph in graphs():
        rooms = [node.box for node in graph.nodes.values() if node.category == "Rooms"]
        assert not any(overlaps(a, b) for a, b in combinations(rooms, 2))
        for box in rooms:
            assert all(5 <= box.size[i] <= 8 for i in (0, 2)) and 2.5 <= box.size[1] <= 3
            assert box.center[1] * 2 == box.size[1]


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_things_lie_in_or_on_their_holder(index: int) -> None:
    for thing, holder in _pairs(graphs()[index], INSIDE):
        assert holder.container
        assert _within(thing.box, holder.box), (thing, holder)
    for thing, holder in _pairs(graphs()[index], ON):
        assert holder.surface and holder.category != "Floor"
        box, top = thing.box, holder.box
        assert abs(box.center[1] - box.size[1] / 2 - top.top) < ROUNDING
        assert _within(Box((box.center[0], top.center[1], box.center[2]), box.size), top), (thing, holder)


@pytest.mark.parametrize("index", range(0, 200, 4))
def test_nodes_and_edges_are_well_formed(index: int) -> None:
    apartment, graph = apartments()[index], graphs()[index]
    rows, rooms = apartment.graph["nodes"], _room_of(graph)
    assert [row["id"] for row in rows] == list(graph.nodes) == list(range(11, 11 + len(rows)))
    for row in rows:
        assert (row["id"] in rooms) == (row["category"] != "Rooms")
        assert row["states"] == list(default_states(row["class_name"]))
        assert row["properties"] == sorted(CLASSES[row["class_name"]].properties)
        numbers = [*row["obj_transform"]["position"], *row["bounding_box"]["size"]]
        assert numbers == [round(number, 3) for number in numbers]
    blocks = [rooms.get(number, number) for number in graph.nodes]
    assert blocks == sorted(blocks), "a room's content follows the room"
    triples = [(e["from_id"], e["relation_type"], e["to_id"]) for e in apartment.graph["edges"]]
    assert len(set(triples)) == len(triples)
    assert {relation for _, relation, _ in triples} == {INSIDE, ON, BETWEEN}
    assert all(rooms[thing.id] == rooms[holder.id] for thing, holder in _pairs(graph, INSIDE, ON))


@pytest.mark.parametrize("class_name", sorted(LIKELY_PLACES))
def test_every_loose_thing_has_a_place(class_name: str) -> None:
    assert any(likely_holders(apartment.graph["nodes"], class_name) for apartment in apartments())
    for holder in LIKELY_PLACES[class_name]:
        assert {"CONTAINERS", "SURFACES"} & set(object_class(holder).properties)


@pytest.mark.parametrize("class_name", GOAL_OBJECTS)
def test_goal_objects_can_be_placed_in_every_likely_holder(class_name: str) -> None:
    for seed in range(10):
        apartment = draw_apartment(None, Random(seed))
        assert apartment == apartments()[seed]
        holders, last = likely_holders(apartment.graph["nodes"], class_name), apartment.graph["nodes"][-1]["id"]
        assert len(holders) >= 3
        holder_of = {place(apartment.graph, class_name, holder, Random(1)): holder for holder in holders}
        assert list(holder_of) == list(range(last + 1, last + 1 + len(holders)))
        graph = read_graph(apartment.graph)
        rooms = _room_of(graph)
        for thing, holder in holder_of.items():
            assert rooms[thing] == rooms[holder]
            on_top = graph[holder].class_name == "nightstand" or not graph[holder].container
            assert [graph.linked(thing, relation, holder) for relation in (ON, INSIDE)] == [on_top, not on_top]


def test_placing_avoids_overlaps() -> None:
    graph = draw_apartment(None, Random(3)).graph
    bed = next(row["id"] for row in graph["nodes"] if row["class_name"] == "bed")
    ids = {place(graph, "book", bed, Random(seed)) for seed in range(8)}
    boxes = [node.box for node in read_graph(graph).nodes.values() if node.id in ids]
    assert not any(overlaps(a, b) for a, b in combinations(boxes, 2))


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


def test_unknown_classes_splits_and_seeds_are_refused() -> None:
    with pytest.raises(DataError, match="no class 'Fridge'"):
        default_states("Fridge")
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
