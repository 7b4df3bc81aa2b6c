"""Knowledge of the agent about a world, and the facts that changed.

``full``: everything, always. ``partial``: all fixtures and what lies on the floor are known from the start; the content
of a receptacle is seen when the agent opens it, or stands at it and it is open or has no door. Until then the fixture
is ``unseen``. A closed box keeps its content to itself wherever it is carried. What was seen is remembered; nobody but
the agent moves things, so a memory never lies.
"""

from __future__ import annotations

from collections.abc import Iterator

from envs.alfred.objects import SLICED, snake
from envs.alfred.thing import Thing
from envs.alfred.world import World
from envs.fact import Fact
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import check_choice

_Marks = tuple[bool, bool, bool, bool, bool]  # hot, cold, clean, held, seen


class Knowledge:
    """One agent's knowledge of one world; call ``update()`` after every step."""

    def __init__(self, world: World, observability: Observability = "full") -> None:
        """Know what can be known at the start. Raises ConfigError for an unknown observability."""
        check_choice("observability", observability, OBSERVABILITIES)
        self.world = world
        self.observability = observability
        self.known: set[str] = set()  # ids of the things the agent knows of
        self.seen: set[str] = set()  # receptacles whose content it has seen
        self.facts: dict[str, Fact] = {}  # what it was last told, by id
        self._told: dict[str, tuple[Thing, _Marks]] = {}
        self.known.update(item for item in world.things if not world[item].pickupable or world.on_floor(item))
        self._look_around()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Knowledge):
            return NotImplemented
        mine, theirs = (self.known, self.seen, self.facts), (other.known, other.seen, other.facts)
        return self.observability == other.observability and mine == theirs and self.world == other.world

    __hash__ = None  # type: ignore[assignment]

    def knows(self, thing_id: str) -> bool:
        """Whether the agent knows where this thing is."""
        return thing_id in self.known and thing_id in self.world.things

    def unseen(self, thing_id: str) -> bool:
        """Whether the agent has yet to look into this receptacle."""
        return thing_id not in self.seen and self.world[thing_id].receptacle

    def update(self) -> list[Fact]:
        """Look around, then return every fact that is new or different since the last call, in scene order."""
        self._look_around()
        facts = [*self._gone(), *self._changed()]
        world = self.world
        sees = tuple(one for one in world.in_view() if world[one].pickupable)
        agent = Fact("agent", "agent", "agent", place=world.at, holds=world.holding, sees=sees)
        if self.facts.get("agent") != agent:
            facts.append(agent)
        self.facts.update((fact.id, fact) for fact in facts if not fact.gone)
        return facts

    def _gone(self) -> Iterator[Fact]:
        """Facts of things that no longer exist, such as a whole apple after the cut."""
        for lost in [told for told in self._told if told not in self.world.things]:
            self.known.discard(lost)
            thing, _ = self._told.pop(lost)
            del self.facts[lost]
            yield Fact(lost, "object", snake(thing.type), gone=True)

    def _changed(self) -> Iterator[Fact]:
        for thing in self.world.things.values():
            if thing.id in self.known and (fact := self._renewed(thing)) is not None:
                yield fact

    def _renewed(self, thing: Thing) -> Fact | None:
        """The thing's fact, if it differs from the one told last."""
        world, name = self.world, thing.id
        marks = (
            name in world.heated,
            name in world.cooled,
            name in world.cleaned,
            name == world.holding,
            name in self.seen,
        )
        told = self._told.get(name)
        if told is not None and told[0] is thing and told[1] == marks:
            return None
        self._told[name] = (thing, marks)
        fact = _object_fact(thing, marks) if thing.pickupable else self._fixture_fact(thing)
        return None if fact == self.facts.get(name) else fact

    def _fixture_fact(self, thing: Thing) -> Fact:
        states = []
        if thing.openable:
            states.append("open" if thing.is_open else "closed")
        if thing.toggleable and (thing.is_on or not thing.openable):
            states.append("on" if thing.is_on else "off")
        if self.unseen(thing.id):
            states.append("unseen")
        return Fact(thing.id, "receptacle", snake(thing.type), place=thing.parent, states=tuple(sorted(states)))

    def _look_around(self) -> None:
        world = self.world
        if self.observability == "full":
            self.known.update(world.things)
            self.seen.update(thing.id for thing in world.things.values() if thing.receptacle)
            return
        self.known.update(world.things.keys() - world.ground.ids)  # slices: the agent cut them itself
        for place in (world.holding, world.at, *self._just_opened()):
            if place is not None:
                self.known.add(place)
                self._look_into(place)

    def _just_opened(self) -> list[str]:
        """Containers opened since the last update, wherever exactly the agent stood."""
        told = self._told
        return [name for name, thing in self.world.things.items() if name in told and told[name][0].shut > thing.shut]

    def _look_into(self, place: str) -> None:
        """See what is in or on a thing, and in open things within it."""
        thing = self.world[place]
        if thing.shut or not thing.receptacle:
            return
        self.seen.add(place)
        for child in thing.contents:
            self.known.add(child)
            self._look_into(child)


def _object_fact(thing: Thing, marks: _Marks) -> Fact:
    hot, cold, clean, held, _ = marks
    words = {"hot": hot, "cold": cold, "clean": clean, "sliced": thing.type in SLICED, "closed": thing.shut}
    states = tuple(sorted(word for word, true in words.items() if true))
    return Fact(thing.id, "object", snake(thing.type), "agent" if held else thing.parent or "floor", states=states)
