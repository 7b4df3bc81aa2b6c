"""Which nodes of a graph a robot has to do with, and what they are called: "kitchencabinet_3"."""

from __future__ import annotations

from envs.wah.graph import CHARACTERS, INSIDE, ON, ROOMS, Graph, Node

# Parts of the building: they have properties (a floor is a surface), but nobody needs to remember them.
BUILDING = frozenset(("wall", "floor", "ceiling", "door", "doorjamb", "window", "curtains", "powersocket"))


def fixture(node: Node) -> bool:
    """A room, or furniture by its properties: something goes in or on it, it opens, or it has a switch."""
    if node.category == ROOMS:
        return True
    useful = node.container or node.surface or node.openable or node.switchable
    return useful and _furniture(node)


def _furniture(node: Node) -> bool:
    return not node.grabbable and node.category != CHARACTERS and node.class_name not in BUILDING


def _carries(graph: Graph, node: Node) -> bool:
    """Whether something lies in or on it, whatever its properties say: a wall shelf may have none."""
    above = (*graph.sources(node.id, ON), *graph.sources(node.id, INSIDE))
    return _furniture(node) and any(movable(graph[one]) for one in above)


def movable(node: Node) -> bool:
    """Something to pick up."""
    return node.grabbable and node.category != CHARACTERS and node.class_name not in BUILDING


class Things:
    """What a graph holds for a robot, by id and by name: "kitchencabinet_3", counted within the class by id.

    It stays the same while nodes change state and place, and is shared by all copies of a household.
    """

    __slots__ = ("_ids", "_names", "_words", "fixtures", "movables")

    def __init__(self, graph: Graph) -> None:
        named = [(one, f"{kind}_{n}") for kind in graph.classes for n, one in enumerate(graph.of_class(kind), 1)]
        self._names = dict(named)
        self._words = {one: name.replace("_", " ") for one, name in named}
        self._ids = {name: one for one, name in named}
        nodes = graph.nodes.items()
        self.fixtures = {one: None for one, node in nodes if fixture(node) or _carries(graph, node)}  # ordered sets
        self.movables = {one: None for one, node in nodes if movable(node)}

    def name(self, thing: int) -> str:
        return self._names[thing]

    def words(self, thing: int) -> str:
        """As a skill says it: "kitchencabinet 3"."""
        return self._words[thing]

    def id(self, name: str) -> int | None:
        """The node of a name; None where there is none."""
        return self._ids.get(name)

    def __contains__(self, thing: object) -> bool:
        return thing in self.fixtures or thing in self.movables
