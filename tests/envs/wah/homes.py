"""Small hand-made apartment for tests of every rule: two rooms, some furniture, a few belongings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from envs.wah.action import Action
from envs.wah.apartments.catalog import default_states, object_class
from envs.wah.data.formats import read_graph
from envs.wah.graph import CHARACTERS, CLOSE, Graph
from envs.wah.home import Home

GraphJson = dict[str, list[dict[str, Any]]]
RELATIONS: Mapping[str, str] = MappingProxyType({"in": "INSIDE", "on": "ON", "between": "BETWEEN"})
KITCHEN, LIVINGROOM = (3.0, 3.0), (9.2, 3.0)  # middles (x, z) of rooms of 6 m by 6 m
FURNITURE = (
    ("fridge", "kitchen_1", 0.4, 1.0), ("dishwasher", "kitchen_1", 0.4, 5.5), ("kitchentable", "kitchen_1", 3.0, 5.5),
    ("kitchencounter", "kitchen_1", 3.0, 0.3), ("kitchencabinet", "kitchen_1", 5.8, 0.5),
    ("kitchencabinet", "kitchen_1", 5.8, 5.5), ("floor", "livingroom_1", 9.2, 3.0),
    ("coffeetable", "livingroom_1", 9.2, 1.0), ("sofa", "livingroom_1", 9.2, 5.5),
    ("bookshelf", "livingroom_1", 12.0, 1.0), ("tv", "livingroom_1", 6.4, 5.8),
)  # fmt: skip
BELONGINGS = (
    ("apple", "on kitchentable_1"), ("apple", "in fridge_1"), ("juice", "in fridge_1"),
    ("plate", "on kitchencounter_1"), ("plate", "in kitchencabinet_1"), ("waterglass", "in kitchencabinet_2"),
    ("cutleryfork", "on kitchentable_1"), ("box", "in bookshelf_1"), ("toy", "in box_1"), ("book", "on coffeetable_1"),
    ("cupcake", "on coffeetable_1"), ("slippers", "on floor_1"),
)  # fmt: skip


def apartment(*things: str, agent_in: str = "") -> GraphJson:
    """Return VirtualHome's graph JSON, ids from 11; with a character, id 1, if ``agent_in`` names a room.

    :param things: further things such as "pie on plate_1", "window at 3 1.5 0" or "chair at 3 0.2 3.5 in kitchen_1"
    """
    graph: GraphJson = {"nodes": [], "edges": []}
    for room, (x, z) in (("kitchen", KITCHEN), ("livingroom", LIVINGROOM)):
        add(graph, room, (x, 1.4, z))
    add(graph, "door", (6.1, 1.05, 3.0), "between kitchen_1", "between livingroom_1")
    for kind, room, x, z in FURNITURE:
        add(graph, kind, (x, object_class(kind).size[1] / 2, z), f"in {room}")
    for kind, link in BELONGINGS:
        put(graph, kind, link)
    for thing in things:
        kind, relation, *words = thing.split()
        if relation == "at":
            x, y, z = map(float, words[:3])
            add(graph, kind, (x, y, z), *filter(None, [" ".join(words[3:])]))
        else:
            put(graph, kind, " ".join((relation, *words)))
    if agent_in:
        x, _, z = row(graph, agent_in)["bounding_box"]["center"]
        add(graph, "character", (x + 1.0, 0.85, z), f"in {agent_in}", number=1)
    return graph


def add(graph: GraphJson, kind: str, center: tuple[float, float, float], *links: str, number: int = 0) -> int:
    """Add a thing in its default state and return its id, the next free one; links are such as "on sofa_1"."""
    number = number or max((node["id"] for node in graph["nodes"]), default=10) + 1
    traits = object_class(kind)
    graph["nodes"].append(
        {
            "id": number, "category": traits.category, "class_name": kind, "prefab_name": f"{kind}_a",
            "properties": list(traits.properties), "states": list(default_states(kind)),
            "bounding_box": {"center": list(center), "size": list(traits.size)},
        }
    )  # fmt: skip
    for link in links:
        relation, target = link.split()
        join(graph, number, RELATIONS[relation], row(graph, target)["id"])
    return number


def put(graph: GraphJson, kind: str, link: str) -> int:
    """Add a thing in or on another, also INSIDE its room as in the simulator's start graphs, and return its id."""
    holder = row(graph, link.split()[1])
    (x, y, z), height = holder["bounding_box"]["center"], holder["bounding_box"]["size"][1]
    center = (x, y if link.startswith("in") else y + height / 2 + object_class(kind).size[1] / 2, z)
    number = add(graph, kind, center, link)
    join(graph, number, "INSIDE", read_graph(graph).room(holder["id"]))
    return number


def join(graph: GraphJson, source: int, relation: str, target: int | None) -> None:
    edge = {"from_id": source, "relation_type": relation, "to_id": target}
    if edge not in graph["edges"]:
        graph["edges"].append(edge)


def row(graph: GraphJson, name: str) -> dict[str, Any]:
    """Return the node named "plate_2": the second of its class."""
    kind, _, number = name.partition("_")
    return [node for node in graph["nodes"] if node["class_name"] == kind][int(number) - 1]


def home(graph: GraphJson | None = None, room: str | None = "kitchen") -> Home:
    """Return a household in the apartment, or in another graph."""
    return Home(read_graph(apartment() if graph is None else graph), room)


def node_id(home: Home, name: str) -> int:
    """Return the id of "plate_2"."""
    kind, _, number = name.partition("_")
    return home.graph.of_class(kind)[int(number) - 1]


def names(graph: Graph) -> dict[int, str]:
    """Return names such as "plate_2" by id."""
    return {node: f"{kind}_{n}" for kind in graph.classes for n, node in enumerate(graph.of_class(kind), 1)}


def action(home: Home, words: str) -> Action:
    """Parse an action such as "putin plate_1 dishwasher_1"."""
    verb, *names = words.split()
    return Action(verb, *(node_id(home, name) for name in names))


def do(home: Home, *steps: str) -> None:
    """Apply actions without checks; each must have an effect."""
    for step in steps:
        assert home.act(action(home, step)), step


def states(home: Home, name: str) -> set[str]:
    return set(home.graph[node_id(home, name)].states)


def edges(graph: Graph, node: int) -> set[str]:
    """Return all relations of a node but CLOSE, with names: {"INSIDE kitchen_1", "apple_1 ON"}."""
    name = names(graph)
    triples = {(a, relation, b) for a, relation, b in graph.edges() if node in (a, b) and relation != CLOSE}
    return {f"{relation} {name[b]}" if a == node else f"{name[a]} {relation}" for a, relation, b in triples}


def place(home: Home, name: str) -> set[str]:
    """Return the relations of a thing to its place or hand: {"INSIDE kitchen_1", "ON kitchentable_1"}."""
    return edges(home.graph, node_id(home, name))


def close(home: Home) -> set[str]:
    """Return the names of the things close to the agent; check that CLOSE is symmetric and only the agent's."""
    graph, name = home.graph, names(home.graph)
    pairs = {(a, b) for a, relation, b in graph.edges() if relation == CLOSE}
    assert pairs == {(b, a) for a, b in pairs}
    assert all(CHARACTERS in (graph[a].category, graph[b].category) for a, b in pairs)
    return {name[b] for a, b in pairs if a == home.agent}
