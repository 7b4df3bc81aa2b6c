"""Which nodes of a graph a robot has to do with, and what they are called: "kitchencabinet_3"."""

from __future__ import annotations

from envs.wah.graph import CHARACTERS, ROOMS, Graph, Node

# Parts of the building: they have properties (a floor is a surface), but nobody needs to remember them.
BUILDING = frozenset(("wall", "floor", "ceiling", "door", "doorjamb", "window", "curtains", "powersocket"))


class Names:
    """Names of the nodes by id and back: class and a number, counted from 1 within the class by id."""

    def __init__(self, graph: Graph) -> None:
        self._names: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        for kind in graph.classes:
            for number, node_id in enumerate(graph.of_class(kind), 1):
                self._names[node_id] = name = f"{kind}_{number}"
                self._ids[name] = node_id

    def __getitem__(self, node_id: int) -> str:
        return self._names[node_id]

    def id(self, name: str) -> int | None:
        return self._ids.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._ids


def fixture(node: Node) -> bool:
    """A room, or furniture that matters: something goes in or on it, it opens, or it has a switch."""
    if node.category == ROOMS:
        return True
    useful = node.container or node.surface or node.openable or node.switchable
    return useful and not node.grabbable and node.class_name not in BUILDING


def movable(node: Node) -> bool:
    """Something to pick up."""
    return node.grabbable and node.category != CHARACTERS and node.class_name not in BUILDING


def relevant(node: Node) -> bool:
    return fixture(node) or movable(node)
