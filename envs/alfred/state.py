"""State of a scene, and queries on it: the things (fixtures and portable objects), the agent and the geometry."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from math import dist
from typing import Self, TypeVar

from envs.alfred import objects
from envs.alfred.scene import Position, Scene
from keep_agent.errors import DataError, SkillError

AGENT_Y = 0.9  # metres; the y coordinate of the agent in AI2-THOR
BASINS = frozenset({"SinkBasin", "BathtubBasin"})


def floor_xz(position: Position) -> tuple[float, float]:
    """Return the floor coordinates (x, z) of a position, in metres."""
    return position[0], position[2]


class Geometry:
    """Ids, basins and standing points of a scene's start; they never change, so all copies of a world share them."""

    __slots__ = ("_reachable", "_standing_points", "basin_of", "ids")

    def __init__(self, scene: Scene) -> None:
        self.ids = frozenset(item.id for item in scene.items)
        basins = [item for item in scene.items if item.type in BASINS]
        self.basin_of = {  # maps the id of a faucet to the id of its nearest basin, as in ALFRED
            faucet.id: min(basins, key=lambda basin: dist(basin.position, faucet.position)).id
            for faucet in scene.items
            if faucet.type == "Faucet" and basins
        }
        self._reachable = scene.reachable
        self._standing_points: dict[tuple[float, float], tuple[float, float]] = {}

    def standing_point(self, position: Position) -> tuple[float, float]:
        """Return the standing point (x, z) nearest to a position; if the scene lists none, the position's (x, z)."""
        target = floor_xz(position)
        if target not in self._standing_points:
            self._standing_points[target] = min(self._reachable, key=lambda point: dist(point, target), default=target)
        return self._standing_points[target]


@dataclass(frozen=True, slots=True)
class Thing:
    """Snapshot of one thing. An action that changes the thing puts a new snapshot into `State.things`."""

    id: str
    type: str
    position: Position  # for a held thing, where it was picked up; in AI2-THOR, where the hand is
    parent: str | None = None  # id of its receptacle; None: on the floor, in the hand, or a fixture outside receptacles
    contents: tuple[str, ...] = ()  # ids of the objects directly in or on it
    is_open: bool = False
    is_on: bool = False
    source: str = ""  # AI2-THOR's object id, or ""

    @property
    def pickupable(self) -> bool:
        return self.type in objects.PICKUPABLE

    @property
    def receptacle(self) -> bool:
        return self.type in objects.RECEPTACLES

    @property
    def movable(self) -> bool:
        """Whether the thing is a receptacle that can be carried: bowl, box, cup, mug, plate, pan, pot."""
        return self.type in objects.MOVABLE_RECEPTACLES

    @property
    def openable(self) -> bool:
        return self.type in objects.OPENABLE

    @property
    def toggleable(self) -> bool:
        return self.type in objects.TOGGLEABLE

    @property
    def closed(self) -> bool:
        """Whether the thing currently hides its content."""
        return not self.is_open and self.type in objects.CONTAINERS


def things_of(scene: Scene) -> dict[str, Thing]:
    """Return the start state of all things, in scene order. ``contents`` has objects only, never fixtures."""
    things: dict[str, Thing] = {}
    for item in scene.items:
        if item.id in things:
            raise DataError(f"scene {scene.id}: two things are called {item.id!r}; number each type from 1")
        if item.type not in objects.KNOWN_TYPES:
            raise DataError(
                f"scene {scene.id}: {item.id!r} has the unknown type {item.type!r}; leave it out of the scene"
            )
        starts_open = "open" in item.states or (item.type in objects.STARTS_OPEN and "closed" not in item.states)
        is_open, is_on = starts_open and item.type in objects.OPENABLE, "on" in item.states
        things[item.id] = Thing(item.id, item.type, item.position, item.parent, (), is_open, is_on, item.source)
    for thing in tuple(things.values()):
        if thing.parent is None:
            continue
        parent = things.get(thing.parent)
        if parent is None or not parent.receptacle or (parent.movable and (thing.movable or not thing.pickupable)):
            raise DataError(
                f"scene {scene.id}: {thing.id!r} cannot start in {thing.parent!r}; name a receptacle, or None"
            )
        if thing.pickupable:
            things[parent.id] = replace(parent, contents=(*parent.contents, thing.id))
    return things


def by_type(things: Mapping[str, Thing]) -> dict[str, tuple[str, ...]]:
    """Return the ids of things by type, each type in the order of ``things``."""
    ids: dict[str, tuple[str, ...]] = {}
    for thing in things.values():
        ids[thing.type] = (*ids.get(thing.type, ()), thing.id)
    return ids


S = TypeVar("S", bound="State")
REACH = 1.5  # metres; AI2-THOR's visibility distance in ALFRED


@dataclass(frozen=True, slots=True)
class Agent:
    """Floor coordinates of the agent in metres, and the thing at which it stands."""

    x: float
    z: float
    at: str | None = None


@dataclass(frozen=True, slots=True)
class SkillHistory:
    """Record of the type-level skills (``find a mug``) of one task, by which later skills choose their instance."""

    target: str | None = None  # id of the thing that the last `find` reached
    find_history: tuple[str, ...] = ()  # ids that consecutive `find` skills for one type tried, oldest first
    put_objects: frozenset[str] = frozenset()  # objects put into a receptacle in this task and not picked up since
    put_receptacles: tuple[str, ...] = ()  # receptacles that received an object in this task, latest last
    has_cut: bool = False  # whether something was sliced in this task


class State:
    """Full state of a scene: things, agent, ids of held, heated, cooled and cleaned things, and the `SkillHistory`."""

    __slots__ = ("_types", "agent", "cleaned", "cooled", "geometry", "heated", "history", "holding", "scene", "things")

    def __init__(self, scene: Scene) -> None:
        """Build the start state. Raises DataError for a contradictory scene."""
        self.scene = scene
        self.geometry = Geometry(scene)
        self.things = things_of(scene)
        self._types = by_type(self.things)
        self.agent = Agent(*scene.agent)
        self.holding: str | None = None
        self.heated: set[str] = set()
        self.cooled: set[str] = set()
        self.cleaned: set[str] = set()
        self.history = SkillHistory()

    def copy(self) -> Self:
        """Return an independent world in the same state; cheap, because the snapshots are shared."""
        return self._copy_into(object.__new__(type(self)))

    def _copy_into(self, copy: S) -> S:
        copy.scene, copy.geometry, copy.agent, copy.holding = self.scene, self.geometry, self.agent, self.holding
        copy.things, copy._types, copy.history = self.things.copy(), self._types.copy(), self.history
        copy.heated, copy.cooled, copy.cleaned = self.heated.copy(), self.cooled.copy(), self.cleaned.copy()
        return copy

    def begin_task(self) -> None:
        """Clear the sets of heated, cooled and cleaned things and the `SkillHistory`; things keep their places."""
        self.heated, self.cooled, self.cleaned, self.history = set(), set(), set(), SkillHistory()

    def _state(self) -> tuple[object, ...]:
        marks = self.heated, self.cooled, self.cleaned
        return self.scene, self.things, self.agent, self.holding, marks, self.history

    def __eq__(self, value: object) -> bool:
        return self._state() == value._state() if isinstance(value, State) else NotImplemented

    @property
    def at(self) -> str | None:
        """Id of the thing at which the agent stands."""
        return self.agent.at

    def __getitem__(self, thing_id: str) -> Thing:
        try:
            return self.things[thing_id]
        except KeyError:
            raise SkillError(f"there is no {thing_id!r} in scene {self.scene.id}") from None

    def of_type(self, thing_type: str) -> tuple[str, ...]:
        """Return ids of all things of exactly this type, in scene order."""
        return self._types.get(thing_type, ())

    def holders(self, thing_id: str) -> Iterator[Thing]:
        """Yield the receptacles around a thing, innermost first; a fixture has none."""
        thing = self[thing_id]
        while thing.parent is not None and thing.pickupable:
            thing = self.things[thing.parent]
            yield thing

    def all_contents(self, thing_id: str) -> Iterator[Thing]:
        """Yield everything in or on a thing, nested things included."""
        for child in self[thing_id].contents:
            yield self.things[child]
            yield from self.all_contents(child)

    def place_of(self, thing_id: str) -> str:
        """Return the id of the place where the agent reaches a thing: its outermost receptacle or the thing itself."""
        return [thing_id, *(outer.id for outer in self.holders(thing_id))][-1]

    def hidden_in(self, thing_id: str) -> str | None:
        """Return the outermost closed container around a thing, or None."""
        hiding = [outer.id for outer in self.holders(thing_id) if outer.closed]
        return hiding[-1] if hiding else None

    def in_view(self) -> list[str]:
        """Return the id of the thing at which the agent stands, then those of all visible things in or on it."""
        if self.at is None or self.at == self.holding:
            return []
        inner = (thing.id for thing in self.all_contents(self.at))
        return [self.at, *(content_id for content_id in inner if self.hidden_in(content_id) is None)]

    def on_floor(self, thing_id: str) -> bool:
        thing = self[thing_id]
        return thing.parent is None and thing.pickupable and thing_id != self.holding

    def distance(self, thing_id: str) -> float:
        """Return the distance from the agent to a thing in metres; 0 for a carried thing."""
        if self.holding is not None and self.place_of(thing_id) == self.holding:
            return 0.0
        return dist((self.agent.x, AGENT_Y, self.agent.z), self[thing_id].position)

    def near(self, thing_id: str) -> bool:
        """Return whether the agent is at a thing, its receptacle or (for a faucet) basin, or within `REACH` of it."""
        places = (self.place_of(thing_id), self[thing_id].parent, self.geometry.basin_of.get(thing_id))
        if self.agent.at is not None and self.agent.at in places:
            return True
        return dist((self.agent.x, self.agent.z), floor_xz(self[thing_id].position)) <= REACH

    def visible(self, thing_id: str) -> bool:
        """Return whether a thing is in the hand, or near and not behind a closed door."""
        if thing_id == self.holding:
            return True
        return self.hidden_in(thing_id) is None and self.near(thing_id)

    def lies_in(self, thing: Thing, places: Container[str], nested: bool = False) -> bool:
        """Return whether a thing counts for a goal as in or on one of the receptacles ``places``.

        Only its direct receptacle counts; ``nested`` has an effect only in `ThorWorld`, where outer ones count too.
        """
        return thing.parent in places

    def sees(self, thing_id: str) -> bool:
        """Return whether a thing counts for a goal as seen; without a camera this is `visible`."""
        return self.visible(thing_id)
