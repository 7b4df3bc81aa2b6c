"""Knowledge of the agent about an apartment, and the facts that have changed.

``full``: the agent knows the whole state. ``partial``, as in Watch-And-Help: the agent knows rooms and furniture from
the start. It sees the things in a room on entering the room, and the things in a closed container on opening the
container. Until then rooms and containers are ``unseen``. Knowledge remains valid, since only the agent moves things.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.fact import Fact
from envs.setting import OBSERVABILITIES, Observability
from envs.wah.graph import ROOMS, Node
from envs.wah.state import HomeState
from keep_agent.errors import check_choice

STATES = ("OPEN", "CLOSED", "ON", "OFF")


class Knowledge:
    """Knowledge of one agent about one household; call ``update()`` after every step."""

    def __init__(self, home: HomeState, observability: Observability = "full") -> None:
        """Initialise the knowledge. Raises ConfigError for an unknown observability."""
        check_choice("observability", observability, OBSERVABILITIES)
        self.home = home
        self.observability = observability
        self.explored: set[int] = set()  # rooms entered, containers seen open
        self.known = {*home.things.fixtures, *(home.things.movables if observability == "full" else ())}
        self.facts: dict[str, Fact] = {}  # last reported facts, by name
        self._pending = set(self.known)
        self._look()

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Knowledge):
            return NotImplemented
        return self._content() == value._content() and self.home == value.home

    __hash__ = None  # type: ignore[assignment]

    def _content(self) -> tuple[object, ...]:
        return self.observability, self.known, self.explored, self.facts

    def knows(self, thing: int) -> bool:
        """Return whether the agent knows the place of a thing."""
        return thing in self.known

    def is_unseen(self, thing: int) -> bool:
        """Return whether the agent has yet to enter this room or to open this container."""
        if self.observability == "full" or thing in self.explored:
            return False
        node = self.home.graph[thing]
        return node.category == ROOMS or (node.closed and node.container)

    def update(self) -> list[Fact]:
        """Observe the home. Returns the new and changed facts, sorted by node id; the agent's fact is last."""
        self._look()
        pending, self._pending = (self._pending | self.home.changed) & self.known, set()
        self.home.changed = set()
        facts = [*(self._fact(self.home.graph[thing]) for thing in sorted(pending)), self._agent()]
        new = [fact for fact in facts if self.facts.get(fact.id) != fact]
        self.facts.update((fact.id, fact) for fact in new)
        return new

    def _look(self) -> None:
        """Observe the agent's room and the open containers in explored rooms."""
        home = self.home
        if self.observability == "full" or home.room is None:
            return
        if home.room not in self.explored:
            self._explore(home.room)
        for thing in home.changed & self.known:
            node = home.graph[thing]
            if node.container and not node.closed and thing not in self.explored and self._in_explored_room(thing):
                self._explore(thing)
        self._see(filter(self._in_explored_room, home.changed))  # a grabbed box leaves its content in the room
        self._see(home.inventory)

    def _in_explored_room(self, thing: int) -> bool:
        return self.home.graph.room(thing) in self.explored

    def _see(self, things: Iterable[int]) -> None:
        home = self.home
        for thing in things:
            node = home.graph[thing]
            if thing not in self.known and thing in home.things.movables and home.hidden_in(thing) is None:
                self.known.add(thing)
                self._pending.add(thing)
            if node.container and not node.closed and home.hidden_in(thing) is None:
                self.explored.add(thing)

    def _explore(self, place: int) -> None:
        """Observe the content of a room or container."""
        self.explored.add(place)
        self._pending.add(place)
        self._see(self.home.all_contents(place))

    def _fact(self, node: Node) -> Fact:
        states = {state.lower() for state in STATES if state in node.states}
        if self.is_unseen(node.id):
            states.add("unseen")
        category = "object" if node.id in self.home.things.movables else "receptacle"
        name = self.home.things.name(node.id)
        return Fact(name, category, node.class_name, self._place(node), states=tuple(sorted(states)))

    def _place(self, node: Node) -> str | None:
        home = self.home
        if node.category == ROOMS:
            return None
        if node.id in home.inventory:
            return "agent"
        holder = home.holder(node.id) if node.grabbable else None
        place = holder if holder in home.things else home.graph.room(node.id)
        return None if place is None else home.things.name(place)

    def _agent(self) -> Fact:
        home, name = self.home, self.home.things.name
        at = home.at if home.at in home.things else home.room  # the room if the agent stands at a door or a floor
        inventory = " ".join(map(name, home.inventory)) or None
        visible = [] if at is None or home.graph[at].category == ROOMS else home.in_view(at)
        sees = tuple(name(thing) for thing in visible if thing in self.known and thing in home.things.movables)
        states = ("sitting",) if home.sitting is not None else ()
        return Fact("agent", "agent", "agent", None if at is None else name(at), inventory, states, sees=sees)
