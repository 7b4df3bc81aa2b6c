"""State of a household, an index of its things, and queries about places, containers, hands and distances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import dist
from typing import Self

from envs.wah.geometry import is_never_close
from envs.wah.graph import CHARACTERS, CLOSE, HANDS, INSIDE, ON, ROOMS, SITTING, Graph, Node

# Parts of the building: they are excluded from facts and skills, although some have properties (a floor is a surface).
BUILDING = frozenset(("wall", "floor", "ceiling", "door", "doorjamb", "window", "curtains", "powersocket"))


def is_fixture(node: Node) -> bool:
    """Return whether a node is a room, or furniture that is a container, a surface, openable or switchable."""
    if node.category == ROOMS:
        return True
    useful = node.container or node.surface or node.openable or node.switchable
    return useful and _furniture(node)


def _furniture(node: Node) -> bool:
    return not node.grabbable and _tangible(node)


def _tangible(node: Node) -> bool:
    return node.category != CHARACTERS and node.class_name not in BUILDING


def _holds_things(graph: Graph, node: Node) -> bool:
    """Return whether a node is furniture that holds things now, even without the property SURFACES (a wall shelf)."""
    contents = (*graph.sources(node.id, ON), *graph.sources(node.id, INSIDE))
    return _furniture(node) and any(is_movable(graph[thing]) for thing in contents)


def is_movable(node: Node) -> bool:
    """Return whether a node can be picked up."""
    return node.grabbable and _tangible(node)


class ThingIndex:
    """Index of a graph's fixtures and movable things, by id and by name: "kitchencabinet_3" is the third of its class.

    It stays valid when nodes change state and place; a household without a simulator shares it with its copies.
    """

    __slots__ = ("_ids", "_names", "_words", "fixtures", "movables")

    def __init__(self, graph: Graph) -> None:
        self._names = {node: f"{kind}_{n}" for kind in graph.classes for n, node in enumerate(graph.of_class(kind), 1)}
        self._words = {node: name.replace("_", " ") for node, name in self._names.items()}
        self._ids = {name: node for node, name in self._names.items()}
        nodes = graph.nodes.values()
        # dicts serve as ordered sets
        self.fixtures = dict.fromkeys(node.id for node in nodes if is_fixture(node) or _holds_things(graph, node))
        self.movables = dict.fromkeys(node.id for node in nodes if is_movable(node))

    def name(self, thing: int) -> str:
        return self._names[thing]

    def words(self, thing: int) -> str:
        """Return the name in a skill: "kitchencabinet 3"."""
        return self._words[thing]

    def id(self, name: str) -> int | None:
        """Return the node id of a name; None for an unknown name."""
        return self._ids.get(name)

    def __contains__(self, thing: object) -> bool:
        return thing in self.fixtures or thing in self.movables


@dataclass(frozen=True, slots=True)
class SkillHistory:
    """State of type-level skills within one task."""

    find_class: str | None = None  # class in the last `find`
    found_node: int | None = None  # node that the last successful `find` reached
    attempts: tuple[int, ...] = ()  # instances that the last `find` and its repetitions have reached
    put_down: frozenset[int] = frozenset()  # things put down in this task and not picked up again
    destinations: tuple[int, ...] = ()  # places where things were put down, latest last


class HomeState:
    """A graph with an agent in it."""

    __slots__ = ("_loose_cache", "agent", "allows_sitting", "at", "changed", "graph", "history", "room", "things")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.things = ThingIndex(graph)
        self.agent = 0  # node id
        self.at: int | None = None  # furniture, room or thing on the floor at which the agent stands
        self.room: int | None = None
        self.history = SkillHistory()
        self.changed: set[int] = set()  # ids of nodes that actions changed
        self.allows_sitting = False  # whether a task of the episode requires sitting down
        self._loose_cache: tuple[int, ...] | None = None  # result of `loose_things`; None: not computed yet

    def copy(self) -> Self:
        """Return an independent household in the same state."""
        copy = object.__new__(type(self))
        copy.graph, copy.agent, copy.at, copy.room = self.graph.copy(), self.agent, self.at, self.room
        copy.history, copy.changed, copy.allows_sitting = self.history, self.changed.copy(), self.allows_sitting
        copy.things, copy._loose_cache = self.things, self._loose_cache
        return copy

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, HomeState):
            return NotImplemented
        return self._agent_state() == value._agent_state() and self.graph == value.graph

    __hash__ = None  # type: ignore[assignment]

    def _agent_state(self) -> tuple[object, ...]:
        return self.agent, self.at, self.room, self.history, self.allows_sitting

    def begin_task(self) -> None:
        """Clear the state that skills keep within a task; things keep their places and states."""
        self.history = SkillHistory()

    @property
    def inventory(self) -> tuple[int, ...]:
        """Things in the agent's right and left hand, in this order."""
        return tuple(thing for hand in HANDS for thing in self.graph.targets(self.agent, hand))

    @property
    def sitting(self) -> int | None:
        """Node id of the seat on which the agent sits; None if it stands."""
        return next(iter(self.graph.targets(self.agent, SITTING)), None)

    def close(self, thing: int) -> bool:
        """Return whether the graph has a CLOSE edge from the thing to the agent, as LoTA-Bench checks it."""
        return self.graph.linked(thing, CLOSE, self.agent)

    def holder(self, thing: int) -> int | None:
        """Return the container that a thing is directly in, else the thing that it is on.

        None for a thing on the floor, on a wall or in the agent's hand.
        """
        graph = self.graph
        if containers := graph.containers(thing):  # the innermost one is itself in the most containers
            return containers[0] if len(containers) == 1 else max(containers, key=lambda c: len(graph.containers(c)))
        surfaces = [below for below in graph.targets(thing, ON) if not is_never_close(graph[below])]
        return min(surfaces, default=None)

    def holders(self, thing: int) -> Iterator[int]:
        """Yield the holder of a thing, the holder's holder and so on, without rooms."""
        visited = {thing}
        outer = self.holder(thing)
        while outer is not None and outer not in visited:
            visited.add(outer)
            yield outer
            outer = self.holder(outer)

    def contents(self, thing: int) -> list[int]:
        """Return the things directly in or on a thing, sorted by id."""
        graph = self.graph
        return sorted(set(graph.sources(thing, INSIDE)) | set(graph.sources(thing, ON)))

    def all_contents(self, thing: int) -> list[int]:
        """Return all things in or on a thing, nested things included, outer things first; without the agent."""
        order, queue = dict.fromkeys((thing, self.agent)), [thing]
        for outer in queue:
            inner = [content for content in self.contents(outer) if content not in order]
            order.update(dict.fromkeys(inner))
            queue += inner
        return [content for content in order if content not in (thing, self.agent)]

    def in_view(self, thing: int) -> list[int]:
        """Return all contents of a thing that are not behind a closed door."""
        graph, visible, queue = self.graph, {thing, self.agent}, [thing]
        for outer in queue:
            inner = set(graph.sources(outer, ON))
            if not graph[outer].closed:
                inner |= graph.sources(outer, INSIDE)
            new = sorted(node for node in inner if node not in visible and not self._closed_in(node, outer))
            visible.update(new)
            queue += new
        return queue[1:]

    def _closed_in(self, thing: int, holder: int) -> bool:
        """Return whether a thing is also INSIDE a closed container other than ``holder``."""
        return any(outer != holder and self.graph[outer].closed for outer in self.graph.containers(thing))

    def fixture_of(self, thing: int) -> int:
        """Return the node to walk to: the first non-grabbable node among a thing and its holders, else the last one."""
        place = thing
        for outer in self.holders(thing):
            if not self.graph[place].grabbable:
                break
            place = outer
        return place

    def hidden_in(self, thing: int) -> int | None:
        """Return the outermost closed container that a thing is in; None if the thing is visible."""
        hiding, inner = None, thing
        for outer in self.holders(thing):
            if self.graph[outer].closed and self.graph.linked(inner, INSIDE, outer):
                hiding = outer
            inner = outer
        return hiding

    def loose_things(self) -> tuple[int, ...]:
        """Return the ids of the movable things that are neither in or on another thing nor in a hand, sorted."""
        if self._loose_cache is None:
            self._loose_cache = self._loose_among(*self.things.movables)
        return self._loose_cache

    def _loose_among(self, *things: int) -> tuple[int, ...]:
        candidates = self.things.movables.keys() & (set(things) - set(self.inventory))
        return tuple(sorted(thing for thing in candidates if self.holder(thing) is None))

    def distance(self, thing: int) -> float:
        """Return the distance from the agent in metres, heights included, as LoTA-Bench measures it."""
        return dist(self.graph[self.agent].position, self.graph[thing].position)
