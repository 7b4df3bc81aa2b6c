"""VirtualHome's environment graph: nodes, and edges that are indexed in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Self

from keep_agent.errors import SkillError

Vector = tuple[float, float, float]  # metres: x, y (up), z
INSIDE, ON, CLOSE, BETWEEN, SITTING = "INSIDE", "ON", "CLOSE", "BETWEEN", "SITTING"
HOLDS_RH, HOLDS_LH = "HOLDS_RH", "HOLDS_LH"  # the simulator fills the right hand first
HANDS = (HOLDS_RH, HOLDS_LH)
RELATIONS = (INSIDE, ON, CLOSE, BETWEEN, SITTING, *HANDS)
ROOMS, CHARACTERS = "Rooms", "Characters"  # categories
_EMPTY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned box, in metres."""

    center: Vector
    size: Vector

    def at(self, center: Vector) -> Box:
        return Box(center, self.size)

    @property
    def top(self) -> float:
        return self.center[1] + self.size[1] / 2


def _has_property(name: str) -> property:
    """Return a Python property: whether a node has VirtualHome's property ``name``."""
    return property(lambda node: name in node.properties)


@dataclass(frozen=True, slots=True)
class Node:
    """Immutable node: the graph replaces it when its states or box change, so read it again after an action."""

    id: int
    class_name: str
    category: str
    properties: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    box: Box | None = None
    prefab: str = ""
    transform: Mapping[str, Any] | None = field(default=None, compare=False)  # position, rotation, scale

    @property
    def position(self) -> Vector:
        """Position in the transform, in metres; without a transform the middle of the box, without a box the origin."""
        position = (self.transform or {}).get("position")
        return tuple(position) if position else self.box.center if self.box else (0.0, 0.0, 0.0)

    grabbable = _has_property("GRABBABLE")
    openable = _has_property("CAN_OPEN")
    container = _has_property("CONTAINERS")
    surface = _has_property("SURFACES")
    switchable = _has_property("HAS_SWITCH")

    @property
    def closed(self) -> bool:
        return "CLOSED" in self.states


class Graph:
    """Nodes by id and relations between them."""

    __slots__ = ("_classes", "_edges", "_reverse", "nodes")

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[int, Node] = {}
        self._edges: dict[str, dict[int, set[int]]] = {relation: {} for relation in RELATIONS}
        self._reverse: dict[str, dict[int, set[int]]] = {relation: {} for relation in RELATIONS}
        self._classes: dict[str, tuple[int, ...]] = {}
        for node in nodes:
            self.add(node)

    def copy(self) -> Self:
        """Return an independent graph in the same state; the nodes are shared."""
        copy = type(self)()
        copy.nodes, copy._classes = self.nodes.copy(), self._classes.copy()
        for source, target in ((self._edges, copy._edges), (self._reverse, copy._reverse)):
            for relation, edges in source.items():
                target[relation] = {key: ids.copy() for key, ids in edges.items() if ids}
        return copy

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Graph):
            return NotImplemented
        return self.nodes == value.nodes and set(self.edges()) == set(value.edges())

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, node_id: int) -> Node:
        try:
            return self.nodes[node_id]
        except KeyError:
            raise SkillError(f"there is no node {node_id} in this graph of {len(self.nodes)} nodes") from None

    def add(self, node: Node) -> None:
        """Add a node as the last of its class."""
        self.nodes[node.id] = node
        self._classes[node.class_name] = (*self._classes.get(node.class_name, ()), node.id)

    def change(self, node_id: int, **fields: Any) -> Node:
        """Replace fields of a node."""
        self.nodes[node_id] = node = replace(self.nodes[node_id], **fields)
        return node

    def of_class(self, name: str) -> tuple[int, ...]:
        """Return the ids of a class in the order in which the nodes were added."""
        return self._classes.get(name, ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes in the order of their first nodes."""
        return tuple(self._classes)

    # relations

    def link(self, source: int, relation: str, target: int) -> None:
        self._edges[relation].setdefault(source, set()).add(target)
        self._reverse[relation].setdefault(target, set()).add(source)

    def detach(self, node_id: int, relations: Iterable[str] = RELATIONS) -> None:
        """Remove a node's edges of these relations, in both directions."""
        for relation in relations:
            edges, back = self._edges[relation], self._reverse[relation]
            for target in edges.pop(node_id, ()):
                back[target].discard(node_id)
            for source in back.pop(node_id, ()):
                edges[source].discard(node_id)

    def targets(self, source: int, relation: str) -> Set[int]:
        return self._edges[relation].get(source, _EMPTY)

    def sources(self, target: int, relation: str) -> Set[int]:
        return self._reverse[relation].get(target, _EMPTY)

    def linked(self, source: int, relation: str, target: int) -> bool:
        return target in self.targets(source, relation)

    def edges(self) -> Iterator[tuple[int, str, int]]:
        """Yield every edge as (source, relation, target), by relation and id."""
        for relation, edges in self._edges.items():
            for source in sorted(edges):
                for target in sorted(edges[source]):
                    yield source, relation, target

    # places of things

    def room(self, node_id: int) -> int | None:
        """Return the room that a node is in, directly or through its holders; else None. A room is in itself."""
        visited: set[int] = set()
        while node_id not in visited:
            visited.add(node_id)
            if self[node_id].category == ROOMS:
                return node_id
            outer = sorted(self.targets(node_id, INSIDE))
            if rooms := [node for node in outer if self[node].category == ROOMS]:
                return rooms[0]
            hands = (self.sources(node_id, hand) for hand in HANDS)
            above = (outer, self.targets(node_id, ON), *hands)
            node_id = next((min(ids) for ids in above if ids), node_id)
        return None

    def containers(self, node_id: int) -> list[int]:
        """Return the containers that a thing has INSIDE edges to, without rooms, sorted by id."""
        nodes = self.nodes
        ids = [outer for outer in self._edges[INSIDE].get(node_id, ()) if nodes[outer].category != ROOMS]
        return sorted(ids) if len(ids) > 1 else ids
