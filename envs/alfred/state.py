"""The state of a scene and the questions one can ask about it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from math import dist
from typing import Self, TypeVar

from envs.alfred.geometry import EYE_HEIGHT, Ground, flat
from envs.alfred.scene import Scene
from envs.alfred.thing import Thing, by_type, things_of
from keep_agent.errors import SkillError

S = TypeVar("S", bound="State")
REACH = 1.5  # metres; AI2-THOR's visibility distance in ALFRED


@dataclass(frozen=True, slots=True)
class Agent:
    """Where the agent is: floor coordinates in metres, and the thing it stands at."""

    x: float
    z: float
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Focus:
    """What type-level skills remember within one task, so that they can pick an instance."""

    target: str | None = None  # the thing last found
    tried: tuple[str, ...] = ()  # instances reached by the same `find` repeated
    placed: frozenset[str] = frozenset()  # objects put into a receptacle in this task
    used: tuple[str, ...] = ()  # receptacles they were put into, latest last
    cut: bool = False  # something was sliced in this task


class State:
    """Where everything is, and what the agent holds, has heated, cooled, cleaned and last found."""

    __slots__ = ("_types", "agent", "cleaned", "cooled", "focus", "ground", "heated", "holding", "scene", "things")

    def __init__(self, scene: Scene) -> None:
        """Build the start state. Raises DataError for a scene that contradicts itself."""
        self.scene = scene
        self.ground = Ground(scene)
        self.things = things_of(scene)
        self._types = by_type(self.things)
        self.agent = Agent(*scene.agent)
        self.holding: str | None = None
        self.heated: set[str] = set()
        self.cooled: set[str] = set()
        self.cleaned: set[str] = set()
        self.focus = Focus()

    def copy(self) -> Self:
        """An independent world in the same state, cheap: the snapshots are shared."""
        return self._copy_into(object.__new__(type(self)))

    def _copy_into(self, other: S) -> S:
        other.scene, other.ground, other.agent, other.holding = self.scene, self.ground, self.agent, self.holding
        other.things, other._types, other.focus = self.things.copy(), self._types.copy(), self.focus
        other.heated, other.cooled, other.cleaned = self.heated.copy(), self.cooled.copy(), self.cleaned.copy()
        return other

    def begin_task(self) -> None:
        """Forget what the last task heated, cooled, cleaned and found; everything stays where it is."""
        self.heated, self.cooled, self.cleaned, self.focus = set(), set(), set(), Focus()

    def _state(self) -> tuple[object, ...]:
        return self.things, self.agent, self.holding, self.heated, self.cooled, self.cleaned, self.focus

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return self.scene == other.scene and self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    @property
    def at(self) -> str | None:
        """The id of the thing the agent stands at."""
        return self.agent.at

    def __getitem__(self, thing_id: str) -> Thing:
        try:
            return self.things[thing_id]
        except KeyError:
            raise SkillError(f"there is no {thing_id!r} in scene {self.scene.id}") from None

    def of_type(self, thing_type: str) -> tuple[str, ...]:
        """Ids of all things of exactly this type, in scene order."""
        return self._types.get(thing_type, ())

    def around(self, thing_id: str) -> Iterator[Thing]:
        """The receptacles around a thing, innermost first; a fixture stands for itself."""
        thing = self[thing_id]
        while thing.parent is not None and thing.pickupable:
            thing = self.things[thing.parent]
            yield thing

    def within(self, thing_id: str) -> Iterator[Thing]:
        """Everything in or on a thing, nested things too."""
        for child in self[thing_id].contents:
            yield self.things[child]
            yield from self.within(child)

    def place_of(self, thing_id: str) -> str:
        """The thing one stands at to reach this one: the fixture around it, else (on the floor, held) itself."""
        place = self[thing_id].id
        for outer in self.around(thing_id):
            place = outer.id
        return place

    def hidden_in(self, thing_id: str) -> str | None:
        """The outermost closed container around a thing, or None."""
        hiding = None
        for outer in self.around(thing_id):
            if outer.shut:
                hiding = outer.id
        return hiding

    def in_view(self) -> list[str]:
        """The thing the agent stands at and all one can see in or on it."""
        if self.at is None or self.at == self.holding:
            return []
        inner = (thing.id for thing in self.within(self.at))
        return [self.at, *(one for one in inner if self.hidden_in(one) is None)]

    def on_floor(self, thing_id: str) -> bool:
        thing = self[thing_id]
        return thing.parent is None and thing.pickupable and thing_id != self.holding

    def distance(self, thing_id: str) -> float:
        """Metres from the agent to a thing; 0 for what it carries."""
        if self.holding is not None and self.place_of(thing_id) == self.holding:
            return 0.0
        return dist((self.agent.x, EYE_HEIGHT, self.agent.z), self[thing_id].position)

    def near(self, thing_id: str) -> bool:
        """Within reach: at the agent's place, or within 1.5 m on the floor plan; a faucet also from its basin."""
        places = (self.place_of(thing_id), self[thing_id].parent, self.ground.basin_of.get(thing_id))
        if self.agent.at is not None and self.agent.at in places:
            return True
        return dist((self.agent.x, self.agent.z), flat(self[thing_id].position)) <= REACH

    def visible(self, thing_id: str) -> bool:
        """Near and not behind a closed door; what the agent carries is visible too."""
        if thing_id == self.holding:
            return True
        return self.hidden_in(thing_id) is None and self.near(thing_id)

    def lies_in(self, thing: Thing, places: Container[str], nested: bool = False) -> bool:
        """Whether a goal may count a thing as being in or on one of these receptacles.

        ``nested``: also by what it is nested in, where a simulator says so; here what counts is direct.
        """
        return thing.parent in places

    def sees(self, thing_id: str) -> bool:
        """Whether a goal may count a thing as seen; where there is no camera, what is visible is."""
        return self.visible(thing_id)
