"""From the simulator's metadata to things as the symbolic world knows them.

Only types that ALFRED knows are read, under the names it knows them by. The simulator names all receptacles that a
thing touches; it is taken to be in the innermost one. Where that is the floor or unknown furniture, it lies on the
floor.
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
from envs.alfred.thing import Thing

Entry = Mapping[str, Any]  # of metadata["objects"]

SHATTERING = objects.types("Bowl Cup Egg Glassbottle Mug Plate Statue Vase WineBottle")  # broken, they are no things
NESTED = 0.3  # metres between a container that is carried and what is in it
RENAMED: Mapping[str, str] = MappingProxyType({"Bottle": "Glassbottle"})  # AI2-THOR 5 -> 2.1, which ALFRED speaks


def kind_of(entry: Entry) -> str:
    """Return the type in ALFRED's words, whether ALFRED has it or not."""
    kind: str = entry["objectType"]
    return RENAMED.get(kind, kind)


def known(entries: Iterable[Entry]) -> list[Entry]:
    """What ALFRED knows, without things that were cut or broken and only stay in the list."""
    return [one for one in entries if kind_of(one) in objects.KNOWN_TYPES and not _is_over(one)]


def position_of(entry: Entry) -> Position:
    place = entry["position"]
    return place["x"], place["y"], place["z"]


class Names:
    """Our ids of the simulator's objects: ``mug_2`` is the mug nearest to where a scene describes ``mug_2``."""

    def __init__(self) -> None:
        self.ours: dict[str, str] = {}  # by the simulator's
        self._theirs: dict[str, str] = {}
        self._last: Counter[str] = Counter()

    def begin(self, listed: Iterable[Entry], described: Iterable[Item]) -> None:
        """Name what is there at the start of an episode; what the description lacks is counted on behind it."""
        left = {one["objectId"]: one for one in sorted(known(listed), key=lambda one: (kind_of(one), position_of(one)))}
        items = list(described)
        for item in items:
            self._last[item.type] = max(self._last[item.type], int(item.id.rpartition("_")[2]))
        near = sorted(
            (dist(item.position, position_of(one)), number, name)
            for number, item in enumerate(items)
            for name, one in left.items()
            if kind_of(one) == item.type
        )
        taken: set[str] = set()
        for _, number, name in near:
            if name in left and items[number].id not in taken:
                taken.add(items[number].id)
                del left[name]
                self._give(name, items[number].id)
        for name, one in left.items():
            self.of(name, kind_of(one))

    def of(self, name: str, kind: str) -> str:
        """Our id of an object; a new one gets the next number of its type."""
        if name not in self.ours:
            self._last[kind] += 1
            self._give(name, f"{objects.snake(kind)}_{self._last[kind]}")
        return self.ours[name]

    def entries(self, listed: Iterable[Entry]) -> dict[str, Entry]:
        """What ALFRED knows of the simulator's list, by our ids."""
        return {self.of(one["objectId"], kind_of(one)): one for one in known(listed)}

    def theirs(self, thing_id: str) -> str:
        """Return the simulator's id of a thing."""
        return self._theirs[thing_id]

    def _give(self, name: str, thing_id: str) -> None:
        self.ours[name], self._theirs[thing_id] = thing_id, name


def read_things(found: Mapping[str, Entry], names: Names, before: Mapping[str, Thing]) -> dict[str, Thing]:
    """Return all things by our ids, in the order of ``before``, new ones last. What did not change is the same object."""
    order = [name for name in before if name in found] + [name for name in found if name not in before]
    bare = {name: _thing(name, found[name]) for name in order}
    parents = {name: _parent(bare[name], found[name], bare, before, names) for name in order if bare[name].pickupable}
    contents = _contents(parents, before)
    things: dict[str, Thing] = {}
    for name in order:
        thing = replace(bare[name], parent=parents.get(name), contents=contents.get(name, ()))
        old = before.get(name)
        things[name] = old if old == thing else thing
    return things


def held(metadata: Mapping[str, Any], names: Names) -> str | None:
    """Our id of what the agent carries."""
    carried = (one["objectId"] for one in metadata["inventoryObjects"] or ())
    return next((names.ours[name] for name in carried if name in names.ours), None)


def touches(entry: Entry, places: Container[str], names: Names) -> bool:
    """Return whether one of the receptacles that the simulator names for an object is one of these of ours."""
    return any(names.ours.get(name) in places for name in entry["parentReceptacles"] or ())


def _is_over(entry: Entry) -> bool:
    cut = bool(entry.get("isSliced")) and entry["objectType"] in objects.SLICEABLE
    return cut or (bool(entry.get("isBroken")) and kind_of(entry) in SHATTERING)


def _thing(name: str, entry: Entry) -> Thing:
    kind = kind_of(entry)
    sealed = kind in objects.CONTAINERS and not entry["openable"]  # it has no door here, so it hides nothing
    return Thing(
        id=name,
        type=kind,
        position=position_of(entry),
        is_open=kind in objects.OPENABLE and (bool(entry["isOpen"]) or sealed),
        is_on=kind in objects.TOGGLEABLE and bool(entry["isToggled"]),
        source=entry["objectId"],
    )


def _parent(
    thing: Thing, entry: Entry, things: Mapping[str, Thing], before: Mapping[str, Thing], names: Names
) -> str | None:
    """Return the innermost receptacle: one that can be carried, else the nearest; None for the floor and the hand.

    Containers side by side touch each other; as in ALFRED none of them is in another.
    """
    if entry["isPickedUp"]:
        return None
    if not entry["parentReceptacles"]:
        return _stays_in(thing, before, things)
    inside = (names.ours.get(name, "") for name in entry["parentReceptacles"])
    around = [things[name] for name in inside if name in things and things[name].receptacle]
    fit = [one for one in around if not (thing.movable and one.movable)]
    fit.sort(key=lambda one: (not one.movable, dist(one.position, thing.position), one.id))
    return fit[0].id if fit else None


def _stays_in(thing: Thing, before: Mapping[str, Thing], things: Mapping[str, Thing]) -> str | None:
    """Return the container it was in: what is in a carried one, or in a pan on a burner, touches nothing for the simulator."""
    old = before.get(thing.id)
    container = things.get(old.parent or "") if old else None
    if container is None or not container.movable or dist(thing.position, container.position) > NESTED:
        return None
    return container.id


def _contents(parents: Mapping[str, str | None], before: Mapping[str, Thing]) -> dict[str, tuple[str, ...]]:
    """What is in each receptacle: what was there first, in the same order."""
    inside: dict[str, list[str]] = {}
    for name, parent in parents.items():
        if parent is not None:
            inside.setdefault(parent, []).append(name)
    return {place: _in_order(now, before[place].contents if place in before else ()) for place, now in inside.items()}


def _in_order(now: list[str], before: tuple[str, ...]) -> tuple[str, ...]:
    return (*(name for name in before if name in now), *(name for name in now if name not in before))
