"""Things of a graph that matter to a robot, and their names: "kitchencabinet_3"."""

from __future__ import annotations

from envs.wah.graph import CHARACTERS, INSIDE, ON, ROOMS, Graph, Node

# Parts of the building: they have properties (a floor is a surface), but are left out of memory.
BUILDING = frozenset(("wall", "floor", "ceiling", "door", "doorjamb", "window", "curtains", "powersocket"))


def fixture(node: Node) -> bool:
    """Return whether a node is a room or furniture: a holder, something that opens, or something with a switch."""
    if node.category == ROOMS:
        return True
    useful = node.container or node.surface or node.openable or node.switchable
    return useful and _furniture(node)


def _furniture(node: Node) -> bool:
    return not node.grabbable and _tangible(node)


def _tangible(node: Node) -> bool:
    return node.category != CHARACTERS and node.class_name not in BUILDING


def _holds_things(graph: Graph, node: Node) -> bool:
    """Return whether something lies in or on furniture: a wall shelf may lack the properties of a holder."""
    contents = (*graph.sources(node.id, ON), *graph.sources(node.id, INSIDE))
    return _furniture(node) and any(movable(graph[thing]) for thing in contents)


def movable(node: Node) -> bool:
    """Return whether a node can be picked up."""
    return node.grabbable and _tangible(node)


class Things:
    """Index of a graph's fixtures and movables, by id and by name: "kitchencabinet_3", numbered within the class.

    It stays valid while nodes change state and place, and is shared by all copies of a household.
    """

    __slots__ = ("_ids", "_names", "_words", "fixtures", "movables")

    def __init__(self, graph: Graph) -> None:
        self._names = {node: f"{kind}_{n}" for kind in graph.classes for n, node in enumerate(graph.of_class(kind), 1)}
        self._words = {node: name.replace("_", " ") for node, name in self._names.items()}
        self._ids = {name: node for node, name in self._names.items()}
        nodes = graph.nodes.values()
        # dicts serve as ordered sets
        self.fixtures = dict.fromkeys(node.id for node in nodes if fixture(node) or _holds_things(graph, node))
        self.movables = dict.fromkeys(node.id for node in nodes if movable(node))

    def name(self, thing: int) -> str:
        return self._names[thing]

    def words(self, thing: int) -> str:
        """Return the name in a skill: "kitchencabinet 3"."""
        return self._words[thing]

    def id(self, name: str) -> int | None:
        """Return the node with a name; None if there is none."""
        return self._ids.get(name)

    def __contains__(self, thing: object) -> bool:
        return thing in self.fixtures or thing in self.movables
