"""Snapshots of things: the values that a world consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from envs.alfred import objects
from envs.alfred.scene import Item, Position, Scene
from keep_agent.errors import DataError


@dataclass(frozen=True, slots=True)
class Thing:
    """A snapshot of one thing; the world replaces it on every change, so read it again after an action."""

    id: str
    type: str
    position: Position  # while the agent holds it: its last position before
    parent: str | None = None  # the receptacle that it is in or on; None: floor, hand, or a separate fixture
    contents: tuple[str, ...] = ()  # ids of the objects directly in or on it
    is_open: bool = False
    is_on: bool = False
    source: str = ""  # the official object id

    @property
    def pickupable(self) -> bool:
        return self.type in objects.PICKUPABLE

    @property
    def receptacle(self) -> bool:
        return self.type in objects.RECEPTACLES

    @property
    def movable(self) -> bool:
        """Whether it is a receptacle that can be carried: bowl, box, cup, mug, plate, pan, pot."""
        return self.type in objects.MOVABLE_RECEPTACLES

    @property
    def openable(self) -> bool:
        return self.type in objects.OPENABLE

    @property
    def toggleable(self) -> bool:
        return self.type in objects.TOGGLEABLE

    @property
    def shut(self) -> bool:
        """Whether it hides its content at present."""
        return not self.is_open and self.type in objects.CONTAINERS


def things_of(scene: Scene) -> dict[str, Thing]:
    """Return the start state of all things, in scene order."""
    things: dict[str, Thing] = {}
    for item in scene.items:
        if item.id in things:
            raise DataError(f"scene {scene.id}: two things are called {item.id!r}; count ids from 1 within a type")
        things[item.id] = _thing(scene, item)
    for thing in tuple(things.values()):
        if thing.parent is not None:
            _settle(scene, things, thing)
    return things


def by_type(things: Mapping[str, Thing]) -> dict[str, tuple[str, ...]]:
    """Return the ids of things by type, in their order."""
    ids: dict[str, tuple[str, ...]] = {}
    for thing in things.values():
        ids[thing.type] = (*ids.get(thing.type, ()), thing.id)
    return ids


def _thing(scene: Scene, item: Item) -> Thing:
    if item.type not in objects.KNOWN_TYPES:
        raise DataError(f"scene {scene.id}: {item.id!r} has the unknown type {item.type!r}; leave it out of the scene")
    open_at_start = "open" in item.states or (item.type in objects.STARTS_OPEN and "closed" not in item.states)
    return Thing(
        id=item.id,
        type=item.type,
        position=item.position,
        parent=item.parent,
        is_open=open_at_start and item.type in objects.OPENABLE,
        is_on="on" in item.states,
        source=item.source,
    )


def _settle(scene: Scene, things: dict[str, Thing], thing: Thing) -> None:
    """Add an object to its receptacle's contents; a fixture on another one (lamp on a desk) only has it as parent."""
    parent = things.get(thing.parent or "")
    if parent is None or not parent.receptacle or (parent.movable and (thing.movable or not thing.pickupable)):
        raise DataError(f"scene {scene.id}: {thing.id!r} cannot start in {thing.parent!r}; name a receptacle, or None")
    if thing.pickupable:
        things[parent.id] = replace(parent, contents=(*parent.contents, thing.id))
