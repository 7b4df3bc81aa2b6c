"""Formats of a graph: VirtualHome's JSON (read and write) and networkx (write only)."""

from __future__ import annotations

from collections.abc import Mapping
from math import dist
from types import MappingProxyType
from typing import Any

import networkx as nx

from envs.splits import finite_number
from envs.wah.graph import BETWEEN, CHARACTERS, CLOSE, RELATIONS, Box, Graph, Node, Vector
from keep_agent.errors import DataError

# Maps a class name of the older simulator (before 2.0) to the current class name.
ALIASES: Mapping[str, str] = MappingProxyType({"kitchencabinets": "kitchencabinet"})
FULL_RELATIONS = frozenset(RELATIONS) - {CLOSE}  # read for all nodes; CLOSE only for characters


def read_graph(content: Mapping[str, Any], where: str = "the graph") -> Graph:
    """Read a graph from the simulator's JSON. CLOSE edges are left out unless one end is a character.

    :raises DataError: the graph is incomplete or inconsistent; the message names ``where``
    """
    try:
        graph = Graph(_node(row) for row in sorted(content["nodes"], key=lambda row: row["id"]))
        edges = [(_id(row["from_id"]), str(row["relation_type"]), _id(row["to_id"])) for row in content["edges"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} is not a VirtualHome graph ({error!r}); export environment_graph again") from error
    if len(graph.nodes) != len(content["nodes"]):
        raise DataError(f"{where} has {len(content['nodes'])} nodes but {len(graph.nodes)} ids; give each node its own")
    for source, relation, target in edges:
        if source not in graph.nodes or target not in graph.nodes:
            raise DataError(f"{where} has an edge {source} {relation} {target} to a node that it lacks")
        is_close_to_character = relation == CLOSE and CHARACTERS in (graph[source].category, graph[target].category)
        if relation in FULL_RELATIONS or is_close_to_character:
            graph.link(source, relation, target)
    return graph


def _node(row: Mapping[str, Any]) -> Node:
    name = str(row["class_name"]).lower()
    box = row.get("bounding_box")
    return Node(
        id=_id(row["id"]),
        class_name=ALIASES.get(name, name),
        category=str(row["category"]),
        properties=_words(row.get("properties")),
        states=_words(row.get("states")),
        box=Box(_vector(box["center"]), _vector(box["size"])) if box else None,
        prefab=str(row.get("prefab_name", "")),
        transform=_transform(row.get("obj_transform")),
    )


def _words(values: Any) -> frozenset[str]:
    words = values or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{words!r:.40} is not a list of words")
    return frozenset(words)


def _transform(value: Any) -> Mapping[str, Any] | None:
    """Check the position in a transform; return the transform unchanged, so that `write_graph` can write it."""
    if value:
        _vector(value["position"])
    return value or None


def _id(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"id {value!r:.40} is not a whole number")
    return value


def _vector(values: Any) -> Vector:
    x, y, z = map(finite_number, values)
    return x, y, z


def write_graph(graph: Graph) -> dict[str, Any]:
    """Return the simulator's JSON, with the nodes sorted by id."""
    nodes = [_row(graph.nodes[node_id]) for node_id in sorted(graph.nodes)]
    edges = [{"from_id": a, "relation_type": relation, "to_id": b} for a, relation, b in graph.edges()]
    return {"nodes": nodes, "edges": edges}


def _row(node: Node) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": node.id, "category": node.category, "class_name": node.class_name, "prefab_name": node.prefab,
        "properties": sorted(node.properties), "states": sorted(node.states),
    }  # fmt: skip
    row["bounding_box"] = {"center": list(node.box.center), "size": list(node.box.size)} if node.box else None
    if node.transform:
        row["obj_transform"] = {key: list(value) for key, value in node.transform.items()}
    return row


def to_networkx(graph: Graph) -> nx.MultiDiGraph:
    """Convert a graph for analysis and drawing: nodes with their fields, edges keyed by relation."""
    converted = nx.MultiDiGraph()
    for node in graph.nodes.values():
        converted.add_node(node.id, class_name=node.class_name, category=node.category, position=node.position)
        converted.nodes[node.id].update(states=sorted(node.states), properties=sorted(node.properties))
    converted.add_edges_from((a, b, relation) for a, relation, b in graph.edges())
    return converted


def room_distances(graph: Graph) -> dict[int, dict[int, float]]:
    """Return the metres between the middles of all rooms: along a path through doors, or straight if no path exists."""
    rooms = [node.id for node in graph.nodes.values() if node.category == "Rooms"]
    plan = nx.Graph()
    plan.add_nodes_from(rooms)
    for door in {source for source, relation, _ in graph.edges() if relation == BETWEEN}:
        ends = sorted(graph.targets(door, BETWEEN))
        plan.add_weighted_edges_from((a, b, _straight_line(graph, a, b)) for a in ends for b in ends if a < b)
    lengths = dict(nx.all_pairs_dijkstra_path_length(plan))
    return {a: {b: lengths[a].get(b, _straight_line(graph, a, b)) for b in rooms} for a in rooms}


def _straight_line(graph: Graph, a: int, b: int) -> float:
    return dist(graph[a].position[::2], graph[b].position[::2])
