"""Knowledge of the agent about an apartment, and the facts that changed.

``full``: everything, always. ``partial``, as in Watch-And-Help: rooms and furniture are known from the start; what lies
in a room is seen when the agent enters it, except what is in a closed container, which it has to open. Until then rooms
and containers are ``unseen``. What was seen is remembered; nobody but the agent moves things, so a memory never lies.
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
    """One agent's knowledge of one household; call ``update()`` after every step."""

    def __init__(self, home: HomeState, observability: Observability = "full") -> None:
        """Raises ConfigError for an unknown observability."""
        check_choice("observability", observability, OBSERVABILITIES)
        self.home = home
        self.observability = observability
        self.seen: set[int] = set()  # rooms entered, containers looked into
        self.known = {*home.things.fixtures, *(home.things.movables if observability == "full" else ())}
        self.facts: dict[str, Fact] = {}  # what it was last told, by name
        self._due = set(self.known)
        self._look()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Knowledge):
            return NotImplemented
        mine, theirs = (self.known, self.seen, self.facts), (other.known, other.seen, other.facts)
        return self.observability == other.observability and mine == theirs and self.home == other.home

    __hash__ = None  # type: ignore[assignment]

    def knows(self, thing: int) -> bool:
        """Whether the agent knows where this is."""
        return thing in self.known

    def unseen(self, thing: int) -> bool:
        """Whether the agent has yet to enter this room or look into this container."""
        if self.observability == "full" or thing in self.seen:
            return False
        node = self.home.graph[thing]
        return node.category == ROOMS or (node.shut and node.container)

    def update(self) -> list[Fact]:
        """Look around, then return every fact that is new or different since the last call, in the order of the ids."""
        self._look()
        home, told = self.home, []
        due, self._due = (self._due | home.changed) & self.known, set()
        home.changed = set()
        for thing in sorted(due):
            fact = self._fact(home.graph[thing])
            if self.facts.get(fact.id) != fact:
                told.append(fact)
        agent = self._agent()
        if self.facts.get("agent") != agent:
            told.append(agent)
        self.facts.update((fact.id, fact) for fact in told)
        return told

    def _look(self) -> None:
        """See the room one is in, and whatever was opened in it."""
        home = self.home
        if self.observability == "full" or home.room is None:
            return
        if home.room not in self.seen:
            self.seen.add(home.room)
            self._due.add(home.room)
            self._see(home.beneath(home.room))
        for thing in home.changed & self.known:
            node = home.graph[thing]
            if node.container and not node.shut and thing not in self.seen and home.graph.room(thing) in self.seen:
                self._see_into(thing)
        self._see(one for one in home.changed if home.graph.room(one) in self.seen)  # what a box that is taken leaves
        self._see(home.held)

    def _see(self, things: Iterable[int]) -> None:
        home = self.home
        for thing in things:
            node = home.graph[thing]
            if thing not in self.known and thing in home.things.movables and home.hidden_in(thing) is None:
                self.known.add(thing)
                self._due.add(thing)
            if node.container and not node.shut and home.hidden_in(thing) is None and thing not in self.seen:
                self.seen.add(thing)

    def _see_into(self, thing: int) -> None:
        self.seen.add(thing)
        self._due.add(thing)
        self._see(self.home.beneath(thing))

    def _fact(self, node: Node) -> Fact:
        states = {state.lower() for state in STATES if state in node.states}
        if self.unseen(node.id):
            states.add("unseen")
        category = "object" if node.id in self.home.things.movables else "receptacle"
        return Fact(
            self.home.things.name(node.id), category, node.class_name, self._place(node), states=tuple(sorted(states))
        )

    def _place(self, node: Node) -> str | None:
        home = self.home
        if node.category == ROOMS:
            return None
        if node.id in home.held:
            return "agent"
        holder = home.holder(node.id) if node.grabbable else None
        place = holder if holder in home.things else home.graph.room(node.id)
        return None if place is None else home.things.name(place)

    def _agent(self) -> Fact:
        home, name = self.home, self.home.things.name
        at = home.at if home.at in home.things else home.room  # who was sent to a door is in a room
        held = " ".join(name(one) for one in home.held) or None
        inner = [] if at is None or home.graph[at].category == ROOMS else home.in_view(at)
        sees = tuple(name(one) for one in inner if one in self.known and one in home.things.movables)
        seat = ("sitting",) if home.sitting is not None else ()
        return Fact("agent", "agent", "agent", None if at is None else name(at), held, seat, sees=sees)
