"""Feasibility of a goal in an apartment: enough movable things, and a place with the needed properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from envs.wah.apartments.belongings import LIKELY_PLACES
from envs.wah.apartments.catalog import CLASSES
from envs.wah.goals import Predicate
from envs.wah.graph import ROOMS, Graph
from keep_agent.errors import DataError, did_you_mean

NEEDED_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {"on": "SURFACES", "inside": "CONTAINERS", "turnOn": "HAS_SWITCH", "sit": "SITTABLE"}
)
"""Property that a place needs, by kind of predicate."""
PORTABLE = "GRABBABLE"  # the property that a thing needs to be carried
MAX_COUNT = 100  # maximum number of things of one class in a layout


def check_apartment(graph: Graph, goal: Sequence[Predicate]) -> None:
    """Raise DataError if an apartment lacks something for a goal."""
    check_places(graph, goal)
    for predicate in goal:
        if predicate.thing:
            _check_name(predicate.thing, graph.classes, "this apartment")
            nodes = [graph[node_id] for node_id in graph.of_class(predicate.thing)]
            if len(nodes) < predicate.count:
                required = f"{predicate.count} of {predicate.thing!r} are required"
                raise DataError(f"{required}, but this apartment has {len(nodes)}; lower the count")
            _check_portable(predicate.thing, sum(node.grabbable for node in nodes) >= predicate.count)


def check_places(graph: Graph, goal: Sequence[Predicate]) -> None:
    """Raise DataError if no instance of a goal's place has all properties that the place's predicates need."""
    for name in dict.fromkeys(predicate.place for predicate in goal if predicate.place):
        _check_name(name, graph.classes, "this apartment")
        kinds = dict.fromkeys(predicate.kind for predicate in goal if predicate.place == name)
        needed = {NEEDED_PROPERTIES[kind] for kind in kinds}
        if not any(needed <= graph[place].properties for place in graph.of_class(name)):
            conditions, properties = " and ".join(map(repr, kinds)), " and ".join(sorted(needed))
            raise DataError(f"{name!r} cannot fulfil {conditions}: none here has the property {properties}")


def check_catalog(goal: Sequence[Predicate]) -> None:
    """Raise DataError for things that cannot be placed in any apartment, and for more than `MAX_COUNT` of a class."""
    for predicate in goal:
        if predicate.thing:
            _check_name(predicate.thing, CLASSES, "any apartment")
            _check_portable(predicate.thing, PORTABLE in CLASSES[predicate.thing].properties)
            if predicate.thing not in LIKELY_PLACES:
                raise DataError(f"no apartment has a likely place for {predicate.thing!r}")
        if predicate.count > MAX_COUNT:
            raise DataError(f"{predicate.count} of {predicate.thing!r} are required; at most {MAX_COUNT} are laid out")


def check_room(graph: Graph, room: Any, where: str) -> None:
    """Raise DataError if an apartment lacks a start room that is not None; ``where`` begins the message."""
    rooms = [node.class_name for node in graph.nodes.values() if node.category == ROOMS]
    if room is not None and room not in rooms:
        hint = did_you_mean(str(room), rooms)
        raise DataError(f"{where} has init_room={room!r:.80}; the rooms there are {', '.join(rooms)}{hint}")


def _check_portable(name: str, portable: bool) -> None:
    if not portable:
        raise DataError(f"{name!r} cannot be carried: too few here have the property {PORTABLE}")


def _check_name(name: str, known: Iterable[str], where: str) -> None:
    if name not in (names := set(known)):
        raise DataError(f"there is no {name!r} in {where}{did_you_mean(name, names)}")
