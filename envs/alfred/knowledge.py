"""Knowledge that the agent has of a world, and facts about what has changed.

With observability ``full``, everything is known at all times. With ``partial``, fixtures and objects on the floor are
known from the start. The content of a receptacle becomes known when the agent opens the receptacle, or stands at it
while it is open or has no door; until then a fixture has the state ``unseen``. The content of a closed box stays hidden
when the box is carried. What is known remains valid, since only the agent moves things (fixtures and objects).
"""

from __future__ import annotations

from collections.abc import Iterator

from envs.alfred.objects import SLICED, id_type
from envs.alfred.state import Thing
from envs.alfred.world import World
from envs.fact import Fact
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import check_choice

_Marks = tuple[bool, bool, bool, bool, bool]  # hot, cold, clean, held, content known


class Knowledge:
    """Knowledge of one agent about one world; call ``update()`` after every step."""

    def __init__(self, world: World, observability: Observability = "full") -> None:
        """Initialise the knowledge. Raises ConfigError for an unknown observability."""
        check_choice("observability", observability, OBSERVABILITIES)
        self.world = world
        self.observability = observability
        self.known: set[str] = set()  # ids of the things whose place the agent knows
        self.known_contents: set[str] = set()  # ids of the receptacles with known content
        self.facts: dict[str, Fact] = {}  # the last fact about each thing, by id, and about "agent"
        self._snapshots: dict[str, tuple[Thing, _Marks]] = {}
        self.known.update(item for item in world.things if not world[item].pickupable or world.on_floor(item))
        self._look_around()

    def _state(self) -> tuple[object, ...]:
        return self.observability, self.known, self.known_contents, self.facts, self.world

    def __eq__(self, value: object) -> bool:
        return self._state() == value._state() if isinstance(value, Knowledge) else NotImplemented

    def knows(self, thing_id: str) -> bool:
        """Return whether the agent knows where this thing is."""
        return thing_id in self.known and thing_id in self.world.things

    def is_unseen(self, thing_id: str) -> bool:
        """Return whether a thing is a receptacle whose content is still unknown."""
        return thing_id not in self.known_contents and self.world[thing_id].receptacle

    def update(self) -> list[Fact]:
        """Observe. Return the facts changed since the last call, first those of removed things, last the agent's."""
        self._look_around()
        world = self.world
        changes = (self._new_fact(thing) for thing in world.things.values() if thing.id in self.known)
        facts = [*self._removals(), *(fact for fact in changes if fact is not None)]
        sees = tuple(thing_id for thing_id in world.in_view() if world[thing_id].pickupable)
        agent = Fact("agent", "agent", "agent", place=world.at, holds=world.holding, sees=sees)
        if self.facts.get("agent") != agent:
            facts.append(agent)
        self.facts.update((fact.id, fact) for fact in facts if not fact.gone)
        return facts

    def _removals(self) -> Iterator[Fact]:
        """Yield facts about things that no longer exist, such as the whole apple after slicing."""
        for thing_id in [snapshot for snapshot in self._snapshots if snapshot not in self.world.things]:
            self.known.discard(thing_id)
            thing, _ = self._snapshots.pop(thing_id)
            del self.facts[thing_id]
            yield Fact(thing_id, "object", id_type(thing.type), gone=True)

    def _new_fact(self, thing: Thing) -> Fact | None:
        """Return the thing's fact if it differs from its last fact, else None."""
        world, thing_id = self.world, thing.id
        hot, cold, clean = (thing_id in marked for marked in (world.heated, world.cooled, world.cleaned))
        marks = hot, cold, clean, thing_id == world.holding, thing_id in self.known_contents
        snapshot = self._snapshots.get(thing_id)
        if snapshot is not None and snapshot[0] is thing and snapshot[1] == marks:
            return None
        self._snapshots[thing_id] = (thing, marks)
        fact = _object_fact(thing, marks) if thing.pickupable else self._fixture_fact(thing)
        return None if fact == self.facts.get(thing_id) else fact

    def _fixture_fact(self, thing: Thing) -> Fact:
        states = []
        if thing.openable:
            states.append("open" if thing.is_open else "closed")
        if thing.toggleable and (thing.is_on or not thing.openable):
            states.append("on" if thing.is_on else "off")
        if self.is_unseen(thing.id):
            states.append("unseen")
        return Fact(thing.id, "receptacle", id_type(thing.type), place=thing.parent, states=tuple(sorted(states)))

    def _look_around(self) -> None:
        world = self.world
        if self.observability == "full":
            self.known.update(world.things)
            self.known_contents.update(thing.id for thing in world.things.values() if thing.receptacle)
            return
        self.known.update(world.things.keys() - world.geometry.ids)  # slices that the agent has cut
        before = self._snapshots
        containers = [
            name for name, thing in world.things.items() if name in before and before[name][0].closed > thing.closed
        ]
        for place in (world.holding, world.at, *containers):  # a container may have been opened from elsewhere
            if place is not None:
                self.known.add(place)
                self._look_into(place)

    def _look_into(self, place: str) -> None:
        """Add the content of a thing, and of open things within it, to the knowledge."""
        thing = self.world[place]
        if thing.receptacle and not thing.closed:
            self.known_contents.add(place)
            self.known.update(thing.contents)
            for child in thing.contents:
                self._look_into(child)


def _object_fact(thing: Thing, marks: _Marks) -> Fact:
    hot, cold, clean, in_hand, _ = marks
    words = {"hot": hot, "cold": cold, "clean": clean, "sliced": thing.type in SLICED, "closed": thing.closed}
    states = tuple(sorted(word for word, true in words.items() if true))
    return Fact(thing.id, "object", id_type(thing.type), "agent" if in_hand else thing.parent or "floor", states=states)
