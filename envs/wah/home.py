"""A household one can act in, without a simulator: VirtualHome's effects on its own graph.

Effects are those of one-line scripts (TestDriver.cs, EnvironmentGraph.cs of the simulator): what is grabbed loses all
its edges and is INSIDE the room of the agent; what is put into a container is INSIDE that alone, what is put onto a
surface ON it and INSIDE its room. Nothing here asks whether an action makes sense: that is the business of `checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Self

from envs.wah.action import CLOSE as SHUT
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action
from envs.wah.geometry import BODY, Boxes, never_close, standing_point
from envs.wah.graph import CHARACTERS, CLOSE, HANDS, INSIDE, ON, ROOMS, SITTING, Box, Graph, Node, Vector
from envs.wah.state import HomeState
from keep_agent.errors import ConfigError, DataError, SkillError

AGENT = 1  # the simulator keeps the ids 1 to 10 for characters; graphs of before do not
EVERYTHING = (INSIDE, ON, CLOSE, SITTING, *HANDS)
STATES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {OPEN: ("CLOSED", "OPEN"), SHUT: ("OPEN", "CLOSED"), SWITCH_ON: ("OFF", "ON"), SWITCH_OFF: ("ON", "OFF")}
)


class Home(HomeState):
    """A graph with an agent in it. ``changed`` collects the ids that an action touched, until somebody takes them."""

    __slots__ = ("_boxes",)

    def __init__(self, graph: Graph, room: str | None = None) -> None:
        """``room`` is the class of the room to start in; None: where the graph's character is, or the first room.

        The graph is the home's own from now on. Raises DataError for a graph without rooms, ConfigError for a room
        that is not there.
        """
        super().__init__(graph)
        self._boxes = Boxes(graph)
        start = self._start(room)
        if not graph.of_class("character"):
            own = AGENT if AGENT not in graph.nodes else max(graph.nodes) + 1
            graph.add(Node(own, "character", CHARACTERS, box=Box((0.0, BODY[1] / 2, 0.0), BODY)))
        self.me = graph.of_class("character")[0]
        if room is not None or graph.room(self.me) is None:
            self._stand(start, graph[start].position)
        else:
            self.room = graph.room(self.me)
            self._look(graph[self.me].box or Box(graph[self.me].position, BODY))
        self.changed = set(graph.nodes)

    def copy(self) -> Self:
        other = super().copy()
        other._boxes = self._boxes.copy()
        return other

    def _start(self, room: str | None) -> int:
        rooms = [node for node in self.graph.nodes.values() if node.category == ROOMS]
        if not rooms:
            raise DataError(f"a graph of {len(self.graph.nodes)} nodes has no room to start in; give it one")
        found = [node.id for node in rooms if node.class_name == room]
        if room is not None and not found:
            known = ", ".join(node.class_name for node in rooms)
            raise ConfigError(f"initial room {room!r} is not in this apartment; choose one of {known}")
        return found[0] if found else rooms[0].id

    def act(self, action: Action) -> bool:
        """Do it, whether or not it makes sense; False for what cannot be done at all (no hand, no such state)."""
        if action.verb == WALK:
            return self._walk(action.thing)
        if action.verb == GRAB:
            return self._grab(action.thing)
        if action.verb in (PUT_IN, PUT_ON):
            return self._put(action.thing, action.place, INSIDE if action.verb == PUT_IN else ON)
        if action.verb == SIT:
            return self._sit(action.thing)
        if action.verb in STATES:
            return self._switch(action.thing, *STATES[action.verb])
        raise SkillError(f"{action.verb!r} is no verb of this world")

    # what actions do

    def _walk(self, thing: int) -> bool:
        self.graph.detach(self.me, (SITTING,))
        if thing in self.held:  # one is there
            self.changed.add(self.me)
            return True
        self.at = self.fixture(thing)
        self._stand(thing, self._spot(self.at))
        return True

    def _spot(self, fixture: int) -> Vector:
        """Where one stands to reach a fixture and what is in or on it."""
        node = self.graph[fixture]
        room = self.graph.room(fixture)
        if node.category == ROOMS or node.box is None:
            return node.position
        return standing_point(node.box, self.graph[room].box if room is not None else None)

    def _stand(self, thing: int, spot: Vector) -> None:
        """Move the agent and what it carries."""
        graph, me = self.graph, self.me
        size = graph[me].box.size if graph[me].box else BODY
        body = Box((spot[0], size[1] / 2, spot[2]), size)
        graph.change(me, box=body, transform={"position": [spot[0], 0.0, spot[2]], "rotation": [0.0, 0.0, 0.0, 1.0]})
        room = graph.room(thing)
        room = self.room if room is None else room  # at a thing in no room one is where one was
        for one in (me, *self.held):
            graph.detach(one, (INSIDE,))
            if room is not None:
                graph.link(one, INSIDE, room)
            if one != me:
                self._place(one, body.center)
        self.room = room
        self._look(body)

    def _place(self, thing: int, center: Vector) -> None:
        """A thing's box is there now."""
        box = self.graph[thing].box
        if box is not None:
            self.graph.change(thing, box=box.moved(center), transform=None)
        self._boxes.move(thing, center)

    def _look(self, body: Box) -> None:
        """Renew CLOSE: by distance, and what the agent stands at or carries."""
        graph, me = self.graph, self.me
        graph.detach(me, (CLOSE,))
        for one in (*self._boxes.close_to(body), *self._reached(), *self.held):
            graph.link(me, CLOSE, one)
            graph.link(one, CLOSE, me)
        self.changed.add(me)

    def _reached(self) -> Iterator[int]:
        """What the agent stands at and all in or on it: one walks along a counter to what lies at its end."""
        if self.at is not None and not never_close(self.graph[self.at]):
            yield self.at
            yield from (one for one in self.beneath(self.at) if not never_close(self.graph[one]))

    def _grab(self, thing: int) -> bool:
        hand = next((hand for hand in HANDS if not self.graph.targets(self.me, hand)), None)
        if hand is None or thing in self.held:
            return False
        content, room = self.within(thing), self.graph.room(thing)
        self.graph.detach(thing, EVERYTHING)
        self._leave(content, room)
        self.graph.link(self.me, hand, thing)
        self._loose = self._lying(*self.loose(), *content)
        self._carry(thing)
        return True

    def _leave(self, content: Iterable[int], room: int | None) -> None:
        """What was in or on something that is grabbed stays behind, around in its room."""
        for one in content:
            if room is not None and self.graph.room(one) is None:
                self.graph.link(one, INSIDE, room)
            self.changed.add(one)

    def _carry(self, thing: int) -> None:
        if self.room is not None:
            self.graph.link(thing, INSIDE, self.room)
        body = self.graph[self.me].box
        self._place(thing, body.center)
        self._look(body)
        self.changed.add(thing)

    def _put(self, thing: int, place: int, relation: str) -> bool:
        if thing not in self.held or place in self.held:
            return False
        graph = self.graph
        graph.detach(thing, EVERYTHING)
        graph.link(thing, relation, place)
        room = graph.room(place)
        if relation == ON and room is not None:
            graph.link(thing, INSIDE, room)
        outer, inner = graph[place].box, graph[thing].box
        if outer is not None and inner is not None:
            height = outer.center[1] if relation == INSIDE else outer.top + inner.size[1] / 2
            self._place(thing, (outer.center[0], height, outer.center[2]))
        self._loose = self._lying(*self.loose(), thing)
        self._look(graph[self.me].box)
        self.changed.update((thing, place))
        return True

    def _switch(self, thing: int, before: str, after: str) -> bool:
        states = self.graph[thing].states
        if before not in states:
            return False
        self.graph.change(thing, states=states - {before} | {after})
        self.changed.add(thing)
        return True

    def _sit(self, thing: int) -> bool:
        self.graph.detach(self.me, (SITTING,))
        self.graph.link(self.me, SITTING, thing)
        self.changed.add(self.me)
        return True
