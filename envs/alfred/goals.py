"""Goals of ALFRED's seven task types: how many conditions of a goal hold, and whether a room has the goal's targets.

The conditions follow ALFRED's env/tasks.py at commit f91f4c0. With ``matching="official"``, as in ALFRED, every
thing (fixture or object) whose id *contains* the target's name is a target: a TissueBox counts as a Box, a slice of an
apple as an Apple. The default, "type", compares types exactly: a task with slices accepts slices only, other tasks
whole objects only. An object counts as placed in its direct receptacle only; in AI2-THOR, "official" matching also
counts the outer receptacles. Open and closed receptacles count alike. A held object is in no receptacle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from envs.alfred import objects
from envs.alfred.scene import Task
from envs.alfred.state import Thing
from envs.alfred.world import World
from keep_agent.errors import DataError, check_choice, did_you_mean

Matching = Literal["type", "official"]
MATCHINGS: tuple[Matching, ...] = ("type", "official")
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
"""Parameters that each task type has in all of ALFRED's 6,825 trials."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """Treatment of the target object that a task type requires."""

    verb: str
    appliance: str  # type of the receptacle in which an object is treated
    objects: frozenset[str]  # types of objects that can be treated
    attribute: str  # name of the `State` attribute that holds the ids of the treated objects


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
        PARENT: objects.RECEPTACLES - objects.MOVABLE_RECEPTACLES,  # movable ones can only be OBJECT or MOVABLE
        TOGGLE: objects.TOGGLEABLE,
        MOVABLE: objects.MOVABLE_RECEPTACLES,
    }
)


class _Goal:
    """Things that count as the targets of one task in the current state of the world."""

    def __init__(self, world: World, task: Task, matching: Matching) -> None:
        self.world = world
        self.matching = matching
        self.slices = self.find(f"{task.object_target}Sliced", objects.PICKUPABLE) if task.sliced else []
        self.objects = self.slices if task.sliced else self.find(task.object_target, objects.PICKUPABLE)
        self.parents = self.find(task.parent_target, objects.RECEPTACLES)
        self.movables = self.find(task.mrecep_target, objects.PICKUPABLE)
        self.toggles = self.find(task.toggle_target, objects.TOGGLEABLE)

    def find(self, name: str, among: frozenset[str]) -> list[Thing]:
        """Return the things of types ``among`` that match ``name``: by type, or by a part of the id ("official")."""
        if not name:
            return []
        if self.matching == "type":
            return [self.world.things[thing_id] for thing_id in self.world.of_type(name)] if name in among else []
        matches = (thing for thing in self.world.things.values() if name in thing.source or name in thing.type)
        return [thing for thing in matches if thing.type in among]

    def lies_in(self, thing: Thing, places: set[str]) -> bool:
        """Return whether a thing is in or on one of ``places``; in AI2-THOR, "official" includes outer places."""
        return self.world.lies_in(thing, places, nested=self.matching == "official")

    def inside(self, receptacles: list[Thing]) -> set[str]:
        """Return the ids of the target objects in or on one of the receptacles."""
        places = {receptacle.id for receptacle in receptacles}
        return {thing.id for thing in self.objects if self.lies_in(thing, places)}


def _place(goal: _Goal) -> tuple[int, int]:
    return int(bool(goal.inside(goal.parents))), 1


def _place_two(goal: _Goal) -> tuple[int, int]:
    most = max((len(goal.inside([parent])) for parent in goal.parents), default=0)
    return min(most, 2), 2


def _look(goal: _Goal) -> tuple[int, int]:
    in_hand = any(thing.id == goal.world.holding for thing in goal.objects)
    is_lit = any(toggle.is_on and goal.world.sees(toggle.id) for toggle in goal.toggles)
    return in_hand + is_lit, 2


def _treat_and_place(goal: _Goal, attribute: str) -> tuple[int, int]:
    inside = goal.inside(goal.parents)
    treated = {thing.id for thing in goal.objects} & getattr(goal.world, attribute)
    return bool(inside) + bool(treated) + bool(inside & treated), 3


def _place_with_movable(goal: _Goal) -> tuple[int, int]:
    parents = {parent.id for parent in goal.parents}
    loaded = [movable for movable in goal.movables if goal.inside([movable])]
    is_placed = any(goal.lies_in(movable, parents) for movable in goal.movables)
    return bool(loaded) + is_placed + any(goal.lies_in(movable, parents) for movable in loaded), 3


_CONDITIONS: dict[str, Callable[[_Goal], tuple[int, int]]] = {
    "pick_and_place_simple": _place,
    "pick_two_obj_and_place": _place_two,
    "look_at_obj_in_light": _look,
    **{kind: partial(_treat_and_place, attribute=treatment.attribute) for kind, treatment in TREATMENTS.items()},
    "pick_and_place_with_movable_recep": _place_with_movable,
}
TASK_TYPES = tuple(_CONDITIONS)


def goal_conditions(world: World, task: Task, matching: Matching = "type") -> tuple[int, int]:
    """Return (conditions met, all conditions). Slices add one condition, in a pick-two task two."""
    check_choice("goal matching", matching, MATCHINGS)
    if task.type not in _CONDITIONS:
        known = ", ".join(TASK_TYPES)
        raise DataError(f"task {task.id or task.instruction!r} has the unknown type {task.type!r}; choose from {known}")
    goal = _Goal(world, task, matching)
    met, total = _CONDITIONS[task.type](goal)
    if task.sliced:
        cuts = 2 if task.type == "pick_two_obj_and_place" else 1
        met, total = met + min(len(goal.slices), cuts), total + cuts
    return met, total


def goal_met(world: World, task: Task, matching: Matching = "type") -> bool:
    """Return whether every goal condition holds now."""
    met, total = goal_conditions(world, task, matching)
    return met == total


def check_targets(kind: str, params: Mapping[str, Any], things: Iterable[str]) -> None:
    """Check the parameters of a task of type ``kind``; ``things`` lists the type of every object in the room.

    Raises DataError for an unknown task or object type, and for a goal that can never be reached.
    """
    if not isinstance(kind, str) or kind not in NEEDED:
        raise DataError(f"task_type={kind!r:.60} is unknown{did_you_mean(str(kind), NEEDED)}")
    if not isinstance(params[SLICED], bool):
        raise DataError(f"{SLICED}={params[SLICED]!r:.60} is not a boolean; set true or false")
    for name in NEEDED[kind]:
        value, known = params[name], objects.SLICEABLE if name == OBJECT and params[SLICED] else _TYPES[name]
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            raise DataError(f"{name}={value!r:.60} is not a type that this parameter can name{hint}")
    counts = Counter(things)
    for name in counts.keys() - objects.KNOWN_TYPES:
        raise DataError(f"an object has the unknown type {name!r:.60}{did_you_mean(name, objects.KNOWN_TYPES)}")
    for name in (target for target in (OBJECT, MOVABLE) if target in NEEDED[kind]):
        needed = 2 if kind.startswith("pick_two") and name == OBJECT and not params[SLICED] else 1
        if counts[params[name]] < needed:
            count = counts[params[name]]
            raise DataError(f"{name}={params[name]!r}: the task needs {needed} of this type, but the room has {count}")
