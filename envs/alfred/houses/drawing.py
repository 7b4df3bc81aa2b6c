"""Random choice of one task, or of a stream of tasks, that are possible in a furnished room and not yet fulfilled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from envs.alfred.goals import TREATMENTS
from envs.alfred.houses.rooms import HOLDS_ONE
from envs.alfred.objects import KNIVES, LAMPS, LOTA_PICKUPABLE, MOVABLE_RECEPTACLES, SLICEABLE, may_hold, whole_type
from envs.alfred.scene import Item, Task

TASK_ROOMS: Mapping[str, tuple[str, ...]] = {
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "pick_and_place_with_movable_recep": ("kitchen", "livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}
TASK_TYPES = tuple(sorted(TASK_ROOMS))

# Receptacles that are never a goal in ALFRED.
NEVER_GOALS = MOVABLE_RECEPTACLES | {"HandTowelHolder", "LaundryHamper", "TVStand", "Toaster", "TowelHolder"}

# Share of the tasks of each type that ask for slices.
_SLICED_SHARE = {
    "pick_and_place_simple": 0.05, "pick_and_place_with_movable_recep": 0.16, "pick_clean_then_place_in_recep": 0.12,
    "pick_cool_then_place_in_recep": 0.28, "pick_heat_then_place_in_recep": 0.36, "pick_two_obj_and_place": 0.04,
}  # fmt: skip


@dataclass
class RoomState:
    """Possible places of objects before the next task of a stream, whether earlier tasks succeeded or failed.

    ``places`` maps each object type to the receptacle types that may hold such an object. Tasks only add types. The
    mapping is right as long as the agent moves objects only as the tasks require.
    """

    counts: Counter[str]  # instances per object type
    places: dict[str, set[str]]
    receptacles: Counter[str]  # instances per type of all other things, mostly receptacles
    free_places: Counter[str]  # unoccupied instances of each receptacle type in `HOLDS_ONE`
    nested_types: set[str] = field(default_factory=set)  # types with an instance in a receptacle that is in another one
    past_targets: set[str] = field(default_factory=set)  # target types of earlier tasks
    excluded_types: set[str] = field(default_factory=set)  # types that no later task may have as its target


def start_state(items: tuple[Item, ...]) -> RoomState:
    """Return the state of a room at the start."""
    by_id = {item.id: item for item in items}
    state = RoomState(Counter(), {}, Counter(), Counter())
    for item in items:
        if item.type in LOTA_PICKUPABLE:
            state.counts[item.type] += 1
            places, parent = state.places.setdefault(item.type, set()), item.parent
            while parent:
                places.add(by_id[parent].type)
                parent = by_id[parent].parent
                state.nested_types |= {item.type} if parent else set()
        else:
            state.receptacles[item.type] += 1
    full = {item.parent for item in items if item.parent}
    state.free_places.update(item.type for item in items if item.type in HOLDS_ONE and item.id not in full)
    return state


def _destinations(state: RoomState, kind: str, goes_in: str, only_unused: bool) -> list[str]:
    """Return the receptacle types that accept ``goes_in``; ``only_unused`` omits those that may hold a ``kind`` now."""
    sources = state.places[kind] if only_unused else set()
    places = (place for place in sorted(state.receptacles.keys() - NEVER_GOALS - sources) if may_hold(place, goes_in))
    return [place for place in places if place not in HOLDS_ONE or state.free_places[place] > 0]


def _objects(state: RoomState, sliced: bool) -> list[str]:
    usable = [kind for kind in sorted(state.counts) if kind not in state.excluded_types]
    if not sliced:
        return usable
    return [kind for kind in usable if kind in SLICEABLE] if KNIVES & set(state.counts) else []


def _target(kind: str, sliced: bool) -> str:
    return f"{kind}Sliced" if sliced else kind


def _look_tasks(task_type: str, state: RoomState, sliced: bool) -> Iterator[Task]:
    for lamp in sorted(LAMPS & set(state.receptacles)):
        for kind in _objects(state, sliced):
            if kind not in state.past_targets:
                yield Task(task_type, kind, toggle_target=lamp)


def _put_tasks(least: int, task_type: str, state: RoomState, sliced: bool) -> Iterator[Task]:
    """Yield tasks that place ``least`` (1 or 2) objects of one type."""
    for kind in _objects(state, sliced):
        if state.counts[kind] < least:
            continue
        for place in _destinations(state, kind, _target(kind, sliced), only_unused=True):
            if least == 1 or place not in HOLDS_ONE:
                yield Task(task_type, kind, place, sliced=sliced)


def _carry_tasks(task_type: str, state: RoomState, sliced: bool) -> Iterator[Task]:
    carriers = [kind for kind in _objects(state, False) if kind in MOVABLE_RECEPTACLES]
    for carrier in (kind for kind in carriers if kind not in state.past_targets):
        for kind in _objects(state, sliced):
            inside = may_hold(carrier, _target(kind, sliced)) and carrier not in state.places[kind]
            if not inside or kind in state.past_targets:
                continue
            for place in _destinations(state, carrier, carrier, only_unused=False):
                yield Task(task_type, kind, place, mrecep_target=carrier, sliced=sliced)


def _treatment_tasks(task_type: str, state: RoomState, sliced: bool) -> Iterator[Task]:
    treatment = TREATMENTS[task_type]
    appliance = treatment.appliance
    needed = {appliance, "Faucet"} if appliance == "SinkBasin" else {appliance}
    if not needed <= state.receptacles.keys():
        return
    for kind in _objects(state, sliced):
        target = _target(kind, sliced)
        if target not in treatment.objects or not may_hold(appliance, target):
            continue
        for place in _destinations(state, kind, target, only_unused=kind in state.past_targets):
            if place != appliance:
                yield Task(task_type, kind, place, sliced=sliced)


_TASK_MAKERS: Mapping[str, Callable[[str, RoomState, bool], Iterator[Task]]] = {
    **dict.fromkeys(TREATMENTS, _treatment_tasks),
    "look_at_obj_in_light": _look_tasks,
    "pick_and_place_simple": partial(_put_tasks, 1),
    "pick_and_place_with_movable_recep": _carry_tasks,
    "pick_two_obj_and_place": partial(_put_tasks, 2),
}


def candidates(task_type: str, state: RoomState, sliced: bool) -> list[Task]:
    """Return every task of a type that is possible and not yet fulfilled, in a fixed order."""
    return list(_TASK_MAKERS[task_type](task_type, state, sliced))


def draw_task(task_type: str, state: RoomState, rng: Random) -> Task | None:
    """Draw a task of a type, or return None if none is possible. Object types without an earlier task are preferred."""
    sliced = rng.random() < _SLICED_SHARE.get(task_type, 0.0)
    tasks = candidates(task_type, state, sliced) or candidates(task_type, state, False)
    tasks = [task for task in tasks if task.object_target not in state.past_targets] or tasks
    if not tasks:
        return None
    kind = rng.choice(sorted({task.object_target for task in tasks}))
    tasks = [task for task in tasks if task.object_target == kind]
    carrier = rng.choice(sorted({task.mrecep_target for task in tasks}))
    return rng.choice([task for task in tasks if task.mrecep_target == carrier])


def apply_task(task: Task, state: RoomState) -> None:
    """Record all changes that a task may have made, whether it succeeded or failed."""
    state.excluded_types |= state.nested_types
    state.past_targets |= {task.object_target, task.mrecep_target} - {""}
    if task.parent_target:
        state.places[task.object_target].add(task.parent_target)
        state.free_places[task.parent_target] -= 1
    if task.mrecep_target:
        state.excluded_types |= {task.object_target, task.mrecep_target}
    if task.toggle_target:  # the object stays in the hand, and may later be put down anywhere
        state.excluded_types.add(task.object_target)
    if task.sliced:
        state.excluded_types |= {whole_type(task.object_target)} | KNIVES


def draw_tasks(first: str, stream: int, state: RoomState, room: str, rng: Random) -> list[Task]:
    """Return ``stream`` tasks, the first of the given type; fewer if the room does not allow that many."""
    types = [kind for kind in TASK_TYPES if room in TASK_ROOMS[kind]]
    tasks: list[Task] = []
    for index in range(stream):
        order = [first] if index == 0 else rng.sample(types, len(types))
        task = next((candidate for kind in order if (candidate := draw_task(kind, state, rng))), None)
        if task is None:
            break
        apply_task(task, state)
        tasks.append(task)
    return tasks
