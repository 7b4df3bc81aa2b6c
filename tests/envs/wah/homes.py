"""A tiny hand-made apartment in which every rule can be provoked: two rooms, some furniture, a few belongings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from envs.wah.action import Action
from envs.wah.apartments.catalog import default_states, kind_of
from envs.wah.data.formats import read_graph
from envs.wah.graph import CHARACTERS, CLOSE, Graph
from envs.wah.home import Home

GraphJson = dict[str, list[dict[str, Any]]]
RELATIONS: Mapping[str, str] = MappingProxyType({"in": "INSIDE", "on": "ON", "between": "BETWEEN"})
KITCHEN, LIVINGROOM = (3.0, 3.0), (9.2, 3.0)  # the middles of rooms of 6 m by 6 m, x and z
FURNITURE = (
    ("fridge", "kitchen_1", 0.4, 1.0),
    ("dishwasher", "kitchen_1", 0.4, 5.5),
    ("kitchentable", "kitchen_1", 3.0, 5.5),
    ("kitchencounter", "kitchen_1", 3.0, 0.3),
    ("kitchencabinet", "kitchen_1", 5.8, 0.5),
    ("kitchencabinet", "kitchen_1", 5.8, 5.5),
    ("floor", "livingroom_1", 9.2, 3.0),
    ("coffeetable", "livingroom_1", 9.2, 1.0),
    ("sofa", "livingroom_1", 9.2, 5.5),
    ("bookshelf", "livingroom_1", 12.0, 1.0),
    ("tv", "livingroom_1", 6.4, 5.8),
)
BELONGINGS = (
    ("apple", "on kitchentable_1"),
    ("apple", "in fridge_1"),
    ("juice", "in fridge_1"),
    ("plate", "on kitchencounter_1"),
    ("plate", "in kitchencabinet_1"),
    ("waterglass", "in kitchencabinet_2"),
    ("cutleryfork", "on kitchentable_1"),
    ("box", "in bookshelf_1"),
    ("toy", "in box_1"),
    ("book", "on coffeetable_1"),
    ("cupcake", "on coffeetable_1"),
    ("slippers", "on floor_1"),
)


def apartment(agent_in: str = "") -> GraphJson:
    """VirtualHome's graph JSON, ids from 11; with a character, id 1, if a room is named."""
    graph: GraphJson = {"nodes": [], "edges": []}
    for room, (x, z) in (("kitchen", KITCHEN), ("livingroom", LIVINGROOM)):
        add(graph, room, (x, 1.4, z))
    add(graph, "door", (6.1, 1.05, 3.0), "between kitchen_1", "between livingroom_1")
    for kind, room, x, z in FURNITURE:
        add(graph, kind, (x, kind_of(kind).size[1] / 2, z), f"in {room}")
    for kind, link in BELONGINGS:
        put(graph, kind, link)
    if agent_in:
        x, _, z = row(graph, agent_in)["bounding_box"]["center"]
        add(graph, "character", (x + 1.0, 0.85, z), f"in {agent_in}", number=1)
    return graph


def add(graph: GraphJson, kind: str, center: tuple[float, float, float], *links: str, number: int = 0) -> int:
    """A new thing in its default states; links such as "on sofa_1". Its id, the next free one."""
    number = number or max((one["id"] for one in graph["nodes"]), default=10) + 1
    found = kind_of(kind)
    graph["nodes"].append(
        {
            "id": number,
            "category": found.category,
            "class_name": kind,
            "prefab_name": f"{kind}_a",
            "properties": list(found.properties),
            "states": list(default_states(kind)),
            "bounding_box": {"center": list(center), "size": list(found.size)},
        }
    )
    for link in links:
        relation, target = link.split()
        join(graph, number, RELATIONS[relation], row(graph, target)["id"])
    return number


def put(graph: GraphJson, kind: str, link: str) -> int:
    """A new thing in or on another, INSIDE its room too, as the simulator's first graphs have it; its id."""
    holder = row(graph, link.split()[1])
    (x, y, z), height = holder["bounding_box"]["center"], holder["bounding_box"]["size"][1]
    center = (x, y if link.startswith("in") else y + height / 2 + kind_of(kind).size[1] / 2, z)
    number = add(graph, kind, center, link)
    join(graph, number, "INSIDE", read_graph(graph).room(holder["id"]))
    return number


def join(graph: GraphJson, source: int, relation: str, target: int | None) -> None:
    edge = {"from_id": source, "relation_type": relation, "to_id": target}
    if edge not in graph["edges"]:
        graph["edges"].append(edge)


def row(graph: GraphJson, name: str) -> dict[str, Any]:
    """The node called "plate_2": the second of its class."""
    kind, _, number = name.partition("_")
    return [one for one in graph["nodes"] if one["class_name"] == kind][int(number) - 1]


def home(graph: GraphJson | None = None, room: str | None = "kitchen") -> Home:
    """A household in the apartment, or in a graph given."""
    return Home(read_graph(apartment() if graph is None else graph), room)


def one(home: Home, name: str) -> int:
    """The id of "plate_2"."""
    kind, _, number = name.partition("_")
    return home.graph.of_class(kind)[int(number) - 1]


def names(graph: Graph) -> dict[int, str]:
    """ "plate_2" by id."""
    return {one: f"{kind}_{n}" for kind in graph.classes for n, one in enumerate(graph.of_class(kind), 1)}


def action(home: Home, words: str) -> Action:
    """ "putin plate_1 dishwasher_1" as an action."""
    verb, *names = words.split()
    return Action(verb, *(one(home, name) for name in names))


def do(home: Home, *steps: str) -> None:
    """Act without asking whether it makes sense; each action must have its effect."""
    for step in steps:
        assert home.act(action(home, step)), step


def states(home: Home, name: str) -> set[str]:
    return set(home.graph[one(home, name)].states)


def edges(graph: Graph, node_id: int) -> set[str]:
    """All relations of a node but CLOSE, with names: {"INSIDE kitchen_1", "apple_1 ON"}."""
    name = names(graph)
    found = {(a, relation, b) for a, relation, b in graph.edges() if node_id in (a, b) and relation != CLOSE}
    return {f"{relation} {name[b]}" if a == node_id else f"{name[a]} {relation}" for a, relation, b in found}


def place(home: Home, name: str) -> set[str]:
    """What a thing is in, on or held by: {"INSIDE kitchen_1", "ON kitchentable_1"}."""
    return edges(home.graph, one(home, name))


def close(home: Home) -> set[str]:
    """What the agent is close to, by name; the graph says so in both directions, and of nobody else."""
    graph, name = home.graph, names(home.graph)
    pairs = {(a, b) for a, relation, b in graph.edges() if relation == CLOSE}
    assert pairs == {(b, a) for a, b in pairs}
    assert all(CHARACTERS in (graph[a].category, graph[b].category) for a, b in pairs)
    return {name[b] for a, b in pairs if a == home.agent}
