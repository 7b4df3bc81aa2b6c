"""Targets of ALFRED's tasks: the types that a task of each kind names, and whether its room has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from envs.alfred import objects
from keep_agent.errors import DataError, did_you_mean

OBJECT, PARENT, TOGGLE, MOVABLE = "object_target", "parent_target", "toggle_target", "mrecep_target"
SLICED = "object_sliced"
PARAMS = (OBJECT, PARENT, TOGGLE, MOVABLE, SLICED)
NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pick_and_place_simple": (OBJECT, PARENT),
        "pick_two_obj_and_place": (OBJECT, PARENT),
        "look_at_obj_in_light": (OBJECT, TOGGLE),
        "pick_heat_then_place_in_recep": (OBJECT, PARENT),
        "pick_cool_then_place_in_recep": (OBJECT, PARENT),
        "pick_clean_then_place_in_recep": (OBJECT, PARENT),
        "pick_and_place_with_movable_recep": (OBJECT, PARENT, MOVABLE),
    }
)
"""What the tasks of ALFRED's 6,825 trials name, without an exception."""

_TYPES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        OBJECT: objects.PICKUPABLE,
        PARENT: objects.RECEPTACLES - objects.MOVABLE_RECEPTACLES,  # what can be carried is MOVABLE, without exception
        TOGGLE: objects.TOGGLEABLE,
        MOVABLE: objects.MOVABLE_RECEPTACLES,
    }
)


def check_targets(kind: str, params: Mapping[str, Any], things: Iterable[str]) -> None:
    """Raises DataError for a thing of an unknown type, and for a goal that can never hold.

    :param things: the types of the things that lie in the room, one for each of them
    """
    if not isinstance(kind, str) or kind not in NEEDED:
        raise DataError(f"task_type={kind!r:.60} is unknown{did_you_mean(str(kind), NEEDED)}")
    if not isinstance(params[SLICED], bool):
        raise DataError(f"{SLICED}={params[SLICED]!r:.60} is no boolean; give true or false")
    for name in NEEDED[kind]:
        _check_type(name, params[name], objects.SLICEABLE if name == OBJECT and params[SLICED] else _TYPES[name])
    there = Counter(things)
    for unknown in there.keys() - objects.KNOWN_TYPES:
        raise DataError(f"a thing is of the unknown type {unknown!r:.60}{did_you_mean(unknown, objects.KNOWN_TYPES)}")
    for name in (one for one in (OBJECT, MOVABLE) if one in NEEDED[kind]):
        wanted = 2 if kind.startswith("pick_two") and name == OBJECT and not params[SLICED] else 1
        if there[params[name]] < wanted:
            raise DataError(f"{name}={params[name]!r} is asked {wanted} times, but the room has {there[params[name]]}")


def _check_type(name: str, value: Any, known: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise DataError(f"{name}={value!r:.60} is no type that a task can name there{hint}")
