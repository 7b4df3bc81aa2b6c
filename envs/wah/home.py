"""Household without a simulator: VirtualHome's effects of actions, applied to a graph in this process.

Effects are those of one-line scripts (TestDriver.cs, EnvironmentGraph.cs of the simulator). A grabbed object loses
its edges; then it is held, and INSIDE the agent's room. An object put into a container is INSIDE this container only.
An object put onto a surface is ON the surface and INSIDE the surface's room. `envs.wah.action` checks preconditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Self

from envs.wah.action import CLOSE as CLOSE_DOOR
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action
from envs.wah.geometry import BODY, Boxes, is_never_close, standing_point
from envs.wah.graph import CHARACTERS, CLOSE, HANDS, INSIDE, ON, ROOMS, SITTING, Box, Graph, Node, Vector
from envs.wah.state import HomeState
from keep_agent.errors import ConfigError, DataError, SkillError

AGENT = 1  # node id; the simulator reserves ids 1 to 10 for characters, but older versions do not
PLACEMENT = (INSIDE, ON, CLOSE, SITTING, *HANDS)
STATES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {OPEN: ("CLOSED", "OPEN"), CLOSE_DOOR: ("OPEN", "CLOSED"), SWITCH_ON: ("OFF", "ON"), SWITCH_OFF: ("ON", "OFF")}
)


class Home(HomeState):
    """Household: a graph with an agent. ``changed``: ids of nodes that actions changed; `Knowledge` clears it."""

    __slots__ = ("_boxes",)

    def __init__(self, graph: Graph, room: str | None = None) -> None:
        """Place the agent in a room of the graph. The household modifies this graph.

        :param room: class of the start room; None: the room that the graph's character is in, else the first room
        :raises DataError: the graph has no room
        :raises ConfigError: ``room`` is not in the graph
        """
        super().__init__(graph)
        self._boxes = Boxes(graph)
        start = self._start_room(room)
        if not graph.of_class("character"):
            number = AGENT if AGENT not in graph.nodes else max(graph.nodes) + 1
            graph.add(Node(number, "character", CHARACTERS, box=Box((0.0, BODY[1] / 2, 0.0), BODY)))
        self.agent = graph.of_class("character")[0]
        if room is not None or graph.room(self.agent) is None:
            self._stand(start, graph[start].position)
        else:
            self.room = graph.room(self.agent)
            self._update_close(graph[self.agent].box or Box(graph[self.agent].position, BODY))
        self.changed = set(graph.nodes)

    def copy(self) -> Self:
        copy = super().copy()
        copy._boxes = self._boxes.copy()
        return copy

    def _start_room(self, room: str | None) -> int:
        rooms = [node for node in self.graph.nodes.values() if node.category == ROOMS]
        if not rooms:
            raise DataError(f"a graph of {len(self.graph.nodes)} nodes has no room to start in; give it one")
        matches = [node.id for node in rooms if node.class_name == room]
        if room is not None and not matches:
            known = ", ".join(node.class_name for node in rooms)
            raise ConfigError(f"initial room {room!r} is not in this apartment; choose one of {known}")
        return matches[0] if matches else rooms[0].id

    def act(self, action: Action) -> bool:
        """Apply an action that `envs.wah.action` allows; return False if hands or states still prevent it."""
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
        raise SkillError(f"{action.verb!r} is not a verb of this world")

    # effects of actions

    def _walk(self, thing: int) -> bool:
        self.graph.detach(self.agent, (SITTING,))
        if thing in self.inventory:  # walking to a held thing does not move the agent
            self.changed.add(self.agent)
            return True
        self.at = self.fixture_of(thing)
        self._stand(thing, self._standing_point(self.at))
        return True

    def _standing_point(self, fixture: int) -> Vector:
        """Return the position from which the agent reaches a fixture and its content."""
        node = self.graph[fixture]
        room = self.graph.room(fixture)
        if node.category == ROOMS or node.box is None:
            return node.position
        return standing_point(node.box, self.graph[room].box if room is not None else None)

    def _stand(self, thing: int, point: Vector) -> None:
        """Move the agent and the things in its hands to ``point``, in the room of ``thing``."""
        graph, agent = self.graph, self.agent
        size = graph[agent].box.size if graph[agent].box else BODY
        body = Box((point[0], size[1] / 2, point[2]), size)
        transform = {"position": [point[0], 0.0, point[2]], "rotation": [0.0, 0.0, 0.0, 1.0]}
        graph.change(agent, box=body, transform=transform)
        room = graph.room(thing)
        room = self.room if room is None else room  # at a thing in no room, the agent's room stays the same
        for node in (agent, *self.inventory):
            graph.detach(node, (INSIDE,))
            if room is not None:
                graph.link(node, INSIDE, room)
            if node != agent:
                self._place(node, body.center)
        self.room = room
        self._update_close(body)

    def _place(self, thing: int, center: Vector) -> None:
        """Move the box of a thing."""
        box = self.graph[thing].box
        if box is not None:
            self.graph.change(thing, box=box.at(center), transform=None)
        self._boxes.move(thing, center)

    def _update_close(self, body: Box) -> None:
        """Update the agent's CLOSE edges: to things within reach of its body, at its place, and in its hands."""
        graph, agent = self.graph, self.agent
        graph.detach(agent, (CLOSE,))
        for thing in (*self._boxes.close_to(body), *self._at_place(), *self.inventory):
            graph.link(agent, CLOSE, thing)
            graph.link(thing, CLOSE, agent)
        self.changed.add(agent)

    def _at_place(self) -> Iterator[int]:
        """Yield the furniture at which the agent stands, and its content; these are CLOSE at any distance."""
        if self.at is not None and not is_never_close(self.graph[self.at]):
            yield self.at
            yield from (thing for thing in self.all_contents(self.at) if not is_never_close(self.graph[thing]))

    def _grab(self, thing: int) -> bool:
        hand = next((hand for hand in HANDS if not self.graph.targets(self.agent, hand)), None)
        if hand is None or thing in self.inventory:
            return False
        contents, room = self.contents(thing), self.graph.room(thing)
        self.graph.detach(thing, PLACEMENT)
        self._leave_behind(contents, room)
        self.graph.link(self.agent, hand, thing)
        self._loose_cache = self._loose_among(*self.loose_things(), *contents)
        if self.room is not None:
            self.graph.link(thing, INSIDE, self.room)
        body = self.graph[self.agent].box
        self._place(thing, body.center)
        self._update_close(body)
        self.changed.add(thing)
        return True

    def _leave_behind(self, contents: Iterable[int], room: int | None) -> None:
        """Leave the contents of a grabbed thing behind in ``room``."""
        for thing in contents:
            if room is not None and self.graph.room(thing) is None:
                self.graph.link(thing, INSIDE, room)
            self.changed.add(thing)

    def _put(self, thing: int, place: int, relation: str) -> bool:
        if thing not in self.inventory or place in self.inventory:
            return False
        graph = self.graph
        graph.detach(thing, PLACEMENT)
        graph.link(thing, relation, place)
        room = graph.room(place)
        if relation == ON and room is not None:
            graph.link(thing, INSIDE, room)
        outer, inner = graph[place].box, graph[thing].box
        if outer is not None and inner is not None:
            height = outer.center[1] if relation == INSIDE else outer.top + inner.size[1] / 2
            self._place(thing, (outer.center[0], height, outer.center[2]))
        self._loose_cache = self._loose_among(*self.loose_things(), thing)
        self._update_close(graph[self.agent].box)
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
        self.graph.detach(self.agent, (SITTING,))
        self.graph.link(self.agent, SITTING, thing)
        self.changed.add(self.agent)
        return True
