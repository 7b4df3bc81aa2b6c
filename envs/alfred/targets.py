"""Targets of ALFRED's tasks: the types that each task type names, checked against the room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
"""Parameters that each task type names in all of ALFRED's 6,825 trials."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment that a task type asks for before its object is placed."""

    verb: str
    appliance: str  # the receptacle in which it happens
    objects: frozenset[str]  # the types that can be treated
    mark: str  # the attribute of `State` that holds the treated things


TREATMENTS: Mapping[str, Treatment] = MappingProxyType(
    {
        "pick_clean_then_place_in_recep": Treatment("clean", "SinkBasin", objects.CLEANABLE, "cleaned"),
        "pick_cool_then_place_in_recep": Treatment("cool", "Fridge", objects.COOLABLE, "cooled"),
        "pick_heat_then_place_in_recep": Treatment("heat", "Microwave", objects.HEATABLE, "heated"),
    }
)

_TYPES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        OBJECT: objects.PICKUPABLE,
        PARENT: objects.RECEPTACLES - objects.MOVABLE_RECEPTACLES,  # receptacles that can be carried are MOVABLE only
        TOGGLE: objects.TOGGLEABLE,
        MOVABLE: objects.MOVABLE_RECEPTACLES,
    }
)


def check_targets(kind: str, params: Mapping[str, Any], things: Iterable[str]) -> None:
    """Check a task's parameters; ``things``: the types in the room, one per instance.

    Raises DataError for an unknown type, and for a goal that can never be reached.
    """
    if not isinstance(kind, str) or kind not in NEEDED:
        raise DataError(f"task_type={kind!r:.60} is unknown{did_you_mean(str(kind), NEEDED)}")
    if not isinstance(params[SLICED], bool):
        raise DataError(f"{SLICED}={params[SLICED]!r:.60} is no boolean; set true or false")
    for name in NEEDED[kind]:
        value, known = params[name], objects.SLICEABLE if name == OBJECT and params[SLICED] else _TYPES[name]
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            raise DataError(f"{name}={value!r:.60} is no type that a task can name here{hint}")
    counts = Counter(things)
    for name in counts.keys() - objects.KNOWN_TYPES:
        raise DataError(f"a thing is of the unknown type {name!r:.60}{did_you_mean(name, objects.KNOWN_TYPES)}")
    for name in (target for target in (OBJECT, MOVABLE) if target in NEEDED[kind]):
        needed = 2 if kind.startswith("pick_two") and name == OBJECT and not params[SLICED] else 1
        if counts[params[name]] < needed:
            raise DataError(
                f"{name}={params[name]!r} is needed {needed} times, but the room has {counts[params[name]]}"
            )
