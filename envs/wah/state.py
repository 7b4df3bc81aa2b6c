"""What one can ask of a household: where things are, what hides them, what the agent holds and is close to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import dist
from typing import Self

from envs.wah.geometry import never_close
from envs.wah.graph import CLOSE, HANDS, INSIDE, ON, SITTING, Graph
from envs.wah.objects import Things


@dataclass(frozen=True, slots=True)
class Focus:
    """What type-level skills remember within one task."""

    found: str | None = None  # the class last named by `find`
    target: int | None = None  # the node it led to
    tried: tuple[int, ...] = ()  # instances reached by the same `find` repeated
    placed: frozenset[int] = frozenset()  # things put down in this task
    used: tuple[int, ...] = ()  # where they were put, latest last


class HomeState:
    """A graph, the agent in it, and what it walked to last."""

    __slots__ = ("_loose", "at", "changed", "focus", "graph", "me", "room", "seats", "things")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.things = Things(graph)
        self.me = 0
        self.at: int | None = None  # the furniture, room or thing on the floor that the agent stands at
        self.room: int | None = None
        self.focus = Focus()
        self.changed: set[int] = set()
        self.seats = False  # whether tasks here ask to sit down
        self._loose: tuple[int, ...] | None = None  # found when asked for; None: something has been moved

    def copy(self) -> Self:
        """An independent household in the same state."""
        other = object.__new__(type(self))
        other.graph, other.me, other.at, other.room = self.graph.copy(), self.me, self.at, self.room
        other.focus, other.changed, other.seats = self.focus, self.changed.copy(), self.seats
        other.things, other._loose = self.things, self._loose
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HomeState):
            return NotImplemented
        return self._state() == other._state() and self.graph == other.graph

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[object, ...]:
        return self.me, self.at, self.room, self.focus, self.seats

    def begin_task(self) -> None:
        """Forget what the last task found and put down; everything stays where it is."""
        self.focus = Focus()

    @property
    def held(self) -> tuple[int, ...]:
        """What the agent carries: right hand, left hand."""
        return tuple(one for hand in HANDS for one in self.graph.targets(self.me, hand))

    @property
    def sitting(self) -> int | None:
        return next(iter(self.graph.targets(self.me, SITTING)), None)

    def close(self, thing: int) -> bool:
        """Whether the graph has an edge from the thing to the agent, as LoTA-Bench asks."""
        return self.graph.linked(thing, CLOSE, self.me)

    def holder(self, thing: int) -> int | None:
        """What a thing lies directly in, or else on; None for what stands on a floor, hangs on a wall or is carried."""
        if inside := self.graph.containers(thing):
            return inside[0] if len(inside) == 1 else self._innermost(inside)
        above = [one for one in self.graph.targets(thing, ON) if not never_close(self.graph[one])]
        return min(above, default=None)

    def _innermost(self, containers: Sequence[int]) -> int:
        """Of nested containers that all claim a thing the one that is in most others; of equals the first."""
        return max(containers, key=lambda one: len(self.graph.containers(one)))

    def around(self, thing: int) -> Iterator[int]:
        """The things around a thing, innermost first, rooms left out."""
        seen = {thing}
        outer = self.holder(thing)
        while outer is not None and outer not in seen:
            seen.add(outer)
            yield outer
            outer = self.holder(outer)

    def within(self, thing: int) -> list[int]:
        """What lies directly in or on a thing, by id."""
        graph = self.graph
        return sorted(set(graph.sources(thing, INSIDE)) | set(graph.sources(thing, ON)))

    def beneath(self, thing: int) -> list[int]:
        """All that is in or on a thing, nested things too, nearer ones first; the agent left out."""
        found, todo = dict.fromkeys((thing, self.me)), [thing]
        for outer in todo:
            inner = [one for one in self.within(outer) if one not in found]
            found.update(dict.fromkeys(inner))
            todo += inner
        return [one for one in found if one not in (thing, self.me)]

    def in_view(self, thing: int) -> list[int]:
        """What of that one can see who stands there: all that no closed door is before."""
        graph, found, todo = self.graph, {thing, self.me}, [thing]
        for outer in todo:
            inner = set(graph.sources(outer, ON))
            if not graph[outer].shut:
                inner |= graph.sources(outer, INSIDE)
            fresh = sorted(one for one in inner if one not in found and not self._shut_in(one, outer))
            found.update(fresh)
            todo += fresh
        return todo[1:]

    def _shut_in(self, thing: int, known: int) -> bool:
        """Whether another container than the one we know of hides it: what is in a cupboard is in the room, too."""
        return any(one != known and self.graph[one].shut for one in self.graph.containers(thing))

    def fixture(self, thing: int) -> int:
        """What one walks to to reach a thing: itself if nobody carries it about, else what it lies in or on."""
        place = thing
        for outer in self.around(thing):
            if not self.graph[place].grabbable:
                break
            place = outer
        return place

    def hidden_in(self, thing: int) -> int | None:
        """The outermost closed container that a thing is in; None where it can be seen."""
        hiding, inner = None, thing
        for outer in self.around(thing):
            if self.graph[outer].shut and self.graph.linked(inner, INSIDE, outer):
                hiding = outer
            inner = outer
        return hiding

    def loose(self) -> tuple[int, ...]:
        """What one can pick up and that lies around: in a room, but in or on nothing. By id."""
        if self._loose is None:
            self._loose = self._lying(*self.things.movables)
        return self._loose

    def _lying(self, *things: int) -> tuple[int, ...]:
        """Those of some things that lie around."""
        here = self.things.movables.keys() & (set(things) - set(self.held))
        return tuple(sorted(one for one in here if self.holder(one) is None))

    def distance(self, thing: int) -> float:
        """Metres from the agent, as LoTA-Bench measures: between positions, heights included."""
        return dist(self.graph[self.me].position, self.graph[thing].position)
