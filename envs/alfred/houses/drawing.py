"""Draws tasks that a furnished room makes possible and that are not done yet, alone or as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from envs.alfred.houses.rooms import HOLDS_ONE
from envs.alfred.objects import KNIVES, LAMPS, LOTA_PICKUPABLE, MOVABLE_RECEPTACLES, SLICEABLE, may_hold, whole
from envs.alfred.scene import Item, Task
from envs.alfred.targets import TREATMENTS

ROOMS_OF: Mapping[str, tuple[str, ...]] = {
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "pick_and_place_with_movable_recep": ("kitchen", "livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}
TASK_TYPES = tuple(sorted(ROOMS_OF))

# Never a goal in ALFRED.
NO_GOAL = MOVABLE_RECEPTACLES | {"HandTowelHolder", "LaundryHamper", "TVStand", "Toaster", "TowelHolder"}


_SLICED_SHARE = {
    "pick_and_place_simple": 0.05,
    "pick_and_place_with_movable_recep": 0.16,
    "pick_clean_then_place_in_recep": 0.12,
    "pick_cool_then_place_in_recep": 0.28,
    "pick_heat_then_place_in_recep": 0.36,
    "pick_two_obj_and_place": 0.04,
}


@dataclass
class Stock:
    """What is known about the room when the next task of a stream begins, done or failed the ones before it.

    ``places`` holds for each object type every receptacle type an instance may be in by now: it only grows, so a
    destination outside it does not hold one yet, as long as things are left where tasks ask for them.
    """

    counts: Counter[str]  # instances per object type
    places: dict[str, set[str]]
    receptacles: Counter[str]
    free: Counter[str]  # unoccupied receptacles of the types that hold one thing
    nested: set[str] = field(default_factory=set)  # types with an instance that starts in a movable receptacle
    used: set[str] = field(default_factory=set)  # types an earlier task was about
    spent: set[str] = field(default_factory=set)  # types no later task may be about


def take_stock(items: tuple[Item, ...]) -> Stock:
    """Return the stock of a room at the start."""
    by_id = {item.id: item for item in items}
    stock = Stock(Counter(), {}, Counter(), Counter())
    for item in items:
        if item.type in LOTA_PICKUPABLE:
            stock.counts[item.type] += 1
            above = list(_ancestors(item, by_id))
            stock.places.setdefault(item.type, set()).update(place.type for place in above)
            if len(above) > 1:
                stock.nested.add(item.type)
        else:
            stock.receptacles[item.type] += 1
    full = {item.parent for item in items if item.parent}
    stock.free.update(item.type for item in items if item.type in HOLDS_ONE and item.id not in full)
    return stock


def _ancestors(item: Item, by_id: Mapping[str, Item]) -> Iterator[Item]:
    while item.parent:
        item = by_id[item.parent]
        yield item


def _destinations(stock: Stock, kind: str, goes_in: str, untouched: bool) -> list[str]:
    """Receptacle types that could be the goal for an object type; ``untouched``: none of it may be there yet."""
    found = []
    for place in sorted(stock.receptacles):
        if place in NO_GOAL or not may_hold(place, goes_in):
            continue
        room_left = place not in HOLDS_ONE or stock.free[place] > 0
        if room_left and not (untouched and place in stock.places[kind]):
            found.append(place)
    return found


def _objects(stock: Stock, sliced: bool) -> list[str]:
    open_to_use = [kind for kind in sorted(stock.counts) if kind not in stock.spent]
    if not sliced:
        return open_to_use
    return [kind for kind in open_to_use if kind in SLICEABLE] if KNIVES & set(stock.counts) else []


def _target(kind: str, sliced: bool) -> str:
    return f"{kind}Sliced" if sliced else kind


def _look_at(stock: Stock, sliced: bool) -> Iterator[Task]:
    for lamp in sorted(LAMPS & set(stock.receptacles)):
        for kind in _objects(stock, sliced):
            if kind not in stock.used:
                yield Task("look_at_obj_in_light", kind, toggle_target=lamp)


def _simple(stock: Stock, sliced: bool) -> Iterator[Task]:
    for kind in _objects(stock, sliced):
        for place in _destinations(stock, kind, _target(kind, sliced), untouched=True):
            yield Task("pick_and_place_simple", kind, place, sliced=sliced)


def _two(stock: Stock, sliced: bool) -> Iterator[Task]:
    for kind in _objects(stock, sliced):
        if stock.counts[kind] < 2:
            continue
        for place in _destinations(stock, kind, _target(kind, sliced), untouched=True):
            if place not in HOLDS_ONE:
                yield Task("pick_two_obj_and_place", kind, place, sliced=sliced)


def _movable(stock: Stock, sliced: bool) -> Iterator[Task]:
    carriers = [kind for kind in _objects(stock, False) if kind in MOVABLE_RECEPTACLES and kind not in stock.used]
    for carrier in carriers:
        for kind in _objects(stock, sliced):
            inside = may_hold(carrier, _target(kind, sliced)) and carrier not in stock.places[kind]
            if not inside or kind in stock.used:
                continue
            for place in _destinations(stock, carrier, carrier, untouched=False):
                yield Task("pick_and_place_with_movable_recep", kind, place, mrecep_target=carrier, sliced=sliced)


def _treated(task_type: str, stock: Stock, sliced: bool) -> Iterator[Task]:
    treatment = TREATMENTS[task_type]
    appliance = treatment.appliance
    missing = appliance not in stock.receptacles
    if missing or (appliance == "SinkBasin" and "Faucet" not in stock.receptacles):
        return
    for kind in _objects(stock, sliced):
        target = _target(kind, sliced)
        if target not in treatment.objects or not may_hold(appliance, target):
            continue
        for place in _destinations(stock, kind, target, untouched=kind in stock.used):
            if place != appliance:
                yield Task(task_type, kind, place, sliced=sliced)


def candidates(task_type: str, stock: Stock, sliced: bool) -> list[Task]:
    """Return every task of a type that can be done and is not done yet, in a fixed order."""
    if task_type in TREATMENTS:
        return list(_treated(task_type, stock, sliced))
    simple = {
        "look_at_obj_in_light": _look_at,
        "pick_and_place_simple": _simple,
        "pick_and_place_with_movable_recep": _movable,
        "pick_two_obj_and_place": _two,
    }
    return list(simple[task_type](stock, sliced))


def draw_task(task_type: str, stock: Stock, rng: Random) -> Task | None:
    """One task of a type: object types not used before come first, then object, then destination, all alike likely."""
    sliced = rng.random() < _SLICED_SHARE.get(task_type, 0.0)
    tasks = candidates(task_type, stock, sliced) or candidates(task_type, stock, False)
    tasks = [task for task in tasks if task.object_target not in stock.used] or tasks
    if not tasks:
        return None
    kind = rng.choice(sorted({task.object_target for task in tasks}))
    tasks = [task for task in tasks if task.object_target == kind]
    carrier = rng.choice(sorted({task.mrecep_target for task in tasks}))
    return rng.choice([task for task in tasks if task.mrecep_target == carrier])


def book(task: Task, stock: Stock) -> None:
    """Note what a task, done or failed, may have changed for the tasks after it."""
    stock.spent |= stock.nested
    stock.used |= {task.object_target, task.mrecep_target} - {""}
    if task.parent_target:
        stock.places[task.object_target].add(task.parent_target)
        stock.free[task.parent_target] -= 1
    if task.mrecep_target:
        stock.spent |= {task.object_target, task.mrecep_target}
    if task.toggle_target:  # still in the hand: it may be put down anywhere
        stock.spent.add(task.object_target)
    if task.sliced:
        stock.spent |= {whole(task.object_target)} | KNIVES


def draw_tasks(first: str, stream: int, stock: Stock, room: str, rng: Random) -> list[Task]:
    """``stream`` tasks, the first of the given type; fewer when the room does not offer as many."""
    types = [kind for kind in TASK_TYPES if room in ROOMS_OF[kind]]
    tasks: list[Task] = []
    for index in range(stream):
        order = [first] if index == 0 else rng.sample(types, len(types))
        task = next((found for kind in order if (found := draw_task(kind, stock, rng))), None)
        if task is None:
            break
        book(task, stock)
        tasks.append(task)
    return tasks
