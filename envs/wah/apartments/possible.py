"""Goals that an apartment can fulfil: it has the things, as many as are asked, movable, and a place that takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from envs.hints import did_you_mean
from envs.wah.apartments.belongings import LIKELY
from envs.wah.apartments.catalog import KINDS
from envs.wah.goals import Predicate
from envs.wah.graph import ROOMS, Graph
from keep_agent.errors import DataError

NEEDED: Mapping[str, str] = MappingProxyType(
    {"on": "SURFACES", "inside": "CONTAINERS", "turnOn": "HAS_SWITCH", "sit": "SITTABLE"}
)
"""The property without which a place never fulfils a predicate."""
CARRIED = "GRABBABLE"  # the property without which nothing is brought anywhere
MOST = 100  # things of a class that are laid out for a goal


def check_apartment(graph: Graph, goal: Sequence[Predicate]) -> None:
    """Raises DataError naming what an apartment lacks for a goal."""
    check_places(graph, goal)
    for one in goal:
        if one.thing:
            _check_name(one.thing, graph.classes, "this apartment")
            there = [graph[thing] for thing in graph.of_class(one.thing)]
            if len(there) < one.count:
                raise DataError(f"{one.count} of {one.thing!r} are asked, but this apartment has {len(there)}")
            _check_carried(one.thing, sum(thing.grabbable for thing in there) >= one.count)


def check_places(graph: Graph, goal: Sequence[Predicate]) -> None:
    """Raises DataError unless an apartment has places that can fulfil a goal: one place all that is asked of it."""
    for name in {one.place: None for one in goal if one.place}:
        _check_name(name, graph.classes, "this apartment")
        kinds = dict.fromkeys(one.kind for one in goal if one.place == name)
        needed = {NEEDED[kind] for kind in kinds}
        if not any(needed <= graph[place].properties for place in graph.of_class(name)):
            asked, lacking = " and ".join(map(repr, kinds)), " and ".join(sorted(needed))
            raise DataError(f"{name!r} cannot fulfil {asked}: none here has the property {lacking}")


def check_catalog(goal: Sequence[Predicate]) -> None:
    """Raises DataError for things that no apartment is laid out with, and for too many of one."""
    for one in goal:
        if one.thing:
            _check_name(one.thing, KINDS, "any apartment")
            _check_carried(one.thing, CARRIED in KINDS[one.thing].properties)
            if one.thing not in LIKELY:
                raise DataError(f"no apartment has a likely place for {one.thing!r}")
        if one.count > MOST:
            raise DataError(f"{one.count} of {one.thing!r} are asked; at most {MOST} are laid out")


def check_room(graph: Graph, room: Any, where: str) -> None:
    """Raises DataError naming ``where`` for a room to start in that an apartment does not have; None names none."""
    rooms = [node.class_name for node in graph.nodes.values() if node.category == ROOMS]
    if room is not None and room not in rooms:
        hint = did_you_mean(str(room), rooms)
        raise DataError(f"{where} has init_room={room!r:.80}; the rooms there are {', '.join(rooms)}{hint}")


def _check_carried(name: str, able: bool) -> None:
    if not able:
        raise DataError(f"{name!r} cannot be carried anywhere: too few here have the property {CARRIED}")


def _check_name(name: str, known: Iterable[str], where: str) -> None:
    if name not in (names := set(known)):
        raise DataError(f"there is no {name!r} in {where}{did_you_mean(name, names)}")
