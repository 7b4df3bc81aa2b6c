"""Reader that makes the things (fixtures and objects) of the symbolic world from AI2-THOR's metadata.

Only ALFRED's types are read, with ALFRED's names. The simulator lists all receptacles that a thing touches; the
innermost one becomes its parent. A thing on the floor or on unknown furniture has no parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from math import dist
from types import MappingProxyType
from typing import Any

from envs.alfred import objects
from envs.alfred.scene import Item, Position
from envs.alfred.state import Thing

Entry = Mapping[str, Any]  # an element of metadata["objects"]

FRAGILE = objects.types("Bowl Cup Egg Glassbottle Mug Plate Statue Vase WineBottle")  # ignored once they are broken
NESTED_DISTANCE = 0.3  # maximum metres between a movable container and its contents
ALFRED_TYPE_NAMES: Mapping[str, str] = MappingProxyType({"Bottle": "Glassbottle"})  # keys: AI2-THOR 5's names


def kind_of(entry: Entry) -> str:
    """Return ALFRED's name of an entry's type."""
    kind: str = entry["objectType"]
    return ALFRED_TYPE_NAMES.get(kind, kind)


def known_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of ALFRED's types, without the cut and broken things that the simulator still lists."""
    return [entry for entry in entries if kind_of(entry) in objects.KNOWN_TYPES and not _is_destroyed(entry)]


def position_of(entry: Entry) -> Position:
    place = entry["position"]
    return place["x"], place["y"], place["z"]


class ThingIds:
    """Map between the simulator's object ids and thing ids: "mug_2" is the mug nearest to the scene item "mug_2"."""

    def __init__(self) -> None:
        self.thing_ids: dict[str, str] = {}  # by the simulator's object id
        self._object_ids: dict[str, str] = {}
        self._last_numbers: Counter[str] = Counter()

    def begin(self, entries: Iterable[Entry], items: Iterable[Item]) -> None:
        """Assign ids at the start of an episode; things without a counterpart in ``items`` get the next numbers."""
        in_order = sorted(known_entries(entries), key=lambda entry: (kind_of(entry), position_of(entry)))
        unnamed, items = {entry["objectId"]: entry for entry in in_order}, list(items)
        for item in items:
            self._last_numbers[item.type] = max(self._last_numbers[item.type], int(item.id.rpartition("_")[2]))
        near = sorted(
            (dist(item.position, position_of(entry)), number, name)
            for number, item in enumerate(items)
            for name, entry in unnamed.items()
            if kind_of(entry) == item.type
        )
        used_ids: set[str] = set()
        for _, number, name in near:
            if name in unnamed and items[number].id not in used_ids:
                used_ids.add(items[number].id)
                del unnamed[name]
                self._assign(name, items[number].id)
        for name, entry in unnamed.items():
            self.id_of(name, kind_of(entry))

    def id_of(self, name: str, kind: str) -> str:
        """Return the thing id of an object; a new object gets the next number of its type."""
        if name not in self.thing_ids:
            self._last_numbers[kind] += 1
            self._assign(name, f"{objects.id_type(kind)}_{self._last_numbers[kind]}")
        return self.thing_ids[name]

    def entries(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """Return the entries of ALFRED's types by thing id."""
        return {self.id_of(entry["objectId"], kind_of(entry)): entry for entry in known_entries(entries)}

    def object_id(self, thing_id: str) -> str:
        """Return the simulator's id of a thing."""
        return self._object_ids[thing_id]

    def _assign(self, name: str, thing_id: str) -> None:
        self.thing_ids[name], self._object_ids[thing_id] = thing_id, name


def read_things(entries: Mapping[str, Entry], ids: ThingIds, before: Mapping[str, Thing]) -> dict[str, Thing]:
    """Return all things by id: first those of ``before`` (the last state), in its order. Unchanged ones are reused."""
    order = [name for name in before if name in entries] + [name for name in entries if name not in before]
    bare = {name: _thing(name, entries[name]) for name in order}
    parents = {name: _parent(bare[name], entries[name], bare, before, ids) for name in order if bare[name].pickupable}
    contents = _contents(parents, before)
    things: dict[str, Thing] = {}
    for name in order:
        thing = replace(bare[name], parent=parents.get(name), contents=contents.get(name, ()))
        old = before.get(name)
        things[name] = old if old == thing else thing
    return things


def thing_in_hand(metadata: Mapping[str, Any], ids: ThingIds) -> str | None:
    """Return the id of the thing in the agent's hand, or None."""
    object_ids = (entry["objectId"] for entry in metadata["inventoryObjects"] or ())
    return next((ids.thing_ids[name] for name in object_ids if name in ids.thing_ids), None)


def has_parent_in(entry: Entry, places: Container[str], ids: ThingIds) -> bool:
    """Return whether one of the receptacles that the simulator lists for an object is in ``places``."""
    return any(ids.thing_ids.get(name) in places for name in entry["parentReceptacles"] or ())


def _is_destroyed(entry: Entry) -> bool:
    cut = bool(entry.get("isSliced")) and entry["objectType"] in objects.SLICEABLE
    return cut or (bool(entry.get("isBroken")) and kind_of(entry) in FRAGILE)


def _thing(name: str, entry: Entry) -> Thing:
    kind = kind_of(entry)
    sealed = kind in objects.CONTAINERS and not entry["openable"]  # has no door in this room, so it hides nothing
    return Thing(
        id=name,
        type=kind,
        position=position_of(entry),
        is_open=kind in objects.OPENABLE and (bool(entry["isOpen"]) or sealed),
        is_on=kind in objects.TOGGLEABLE and bool(entry["isToggled"]),
        source=entry["objectId"],
    )


def _parent(
    thing: Thing, entry: Entry, things: Mapping[str, Thing], before: Mapping[str, Thing], ids: ThingIds
) -> str | None:
    """Return the id of the innermost receptacle (a movable one, else the nearest); None on the floor or in the hand."""
    if entry["isPickedUp"]:
        return None
    if not entry["parentReceptacles"]:
        return _previous_container(thing, before, things)
    inside = (ids.thing_ids.get(name, "") for name in entry["parentReceptacles"])
    around = [things[name] for name in inside if name in things and things[name].receptacle]
    suitable = [outer for outer in around if not (thing.movable and outer.movable)]
    suitable.sort(key=lambda outer: (not outer.movable, dist(outer.position, thing.position), outer.id))
    return suitable[0].id if suitable else None


def _previous_container(thing: Thing, before: Mapping[str, Thing], things: Mapping[str, Thing]) -> str | None:
    """Return a thing's last container if still near: AI2-THOR does not list carried containers, or pans on burners."""
    old = before.get(thing.id)
    container = things.get(old.parent or "") if old else None
    if container is None or not container.movable or dist(thing.position, container.position) > NESTED_DISTANCE:
        return None
    return container.id


def _contents(parents: Mapping[str, str | None], before: Mapping[str, Thing]) -> dict[str, tuple[str, ...]]:
    """Return the contents of each receptacle: those that it had before, in the same order, then new ones."""
    inside: dict[str, list[str]] = {}
    for name, parent in parents.items():
        if parent is not None:
            inside.setdefault(parent, []).append(name)
    contents: dict[str, tuple[str, ...]] = {}
    for place, names in inside.items():
        old = before[place].contents if place in before else ()
        contents[place] = (*(name for name in old if name in names), *(name for name in names if name not in old))
    return contents
