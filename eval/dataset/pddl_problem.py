"""A house and a task of ours as ALFWorld has them: a problem in PDDL.

What fits where, and when a goal holds, is what the installed alfworld says.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import dist

from envs.alfred import objects
from envs.alfred.scene import Episode, Item, Scene, Task

FURNITURE = objects.RECEPTACLES - objects.MOVABLE_RECEPTACLES
TREATED = {
    "cleanable": objects.CLEANABLE,
    "heatable": objects.HEATABLE,
    "coolable": objects.COOLABLE,
    "sliceable": objects.SLICEABLE,
    "toggleable": objects.LAMPS,
    "pickupable": objects.PICKUPABLE,
}
NAMED_BY_RULES = ({"SinkBasin", "Microwave", "Fridge"}, {"Knife", "ButterKnife"})  # types in ALFWorld's domain
_LAST = 999  # ALFWorld counts the ids of a type downwards; so "cabinet 3" is our cabinet_3


def why_not(episode: Episode) -> str:
    """Why ALFWorld cannot express an episode; "" if it can."""
    kinds = {item.id: item.type for item in episode.scene.items}
    if len(episode.tasks) > 1:
        return "several tasks"
    task = episode.tasks[0]
    if task.sliced:
        return "slices"
    if task.mrecep_target:
        return "movable receptacles"
    carried = [item for item in episode.scene.items if item.type in objects.PICKUPABLE]
    if any(item.parent is None for item in carried):
        return "things on the floor"
    return "things in things" if any(kinds[item.parent] not in FURNITURE for item in carried) else ""


def problem(scene: Scene, task: Task) -> str:
    """In PDDL, for the domain that comes with alfworld. Needs the extra ``alfworld``."""
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS

    places = [item for item in scene.items if item.type in FURNITURE]
    things = [item for item in scene.items if item.type in objects.PICKUPABLE | objects.LAMPS]
    kinds = {item.type for item in places} | NAMED_BY_RULES[0] | {task.parent_target} - {""}
    types = {item.type for item in things} | NAMED_BY_RULES[1] | {task.object_target, task.toggle_target} - {""}
    declared = [
        "agent1 - agent",
        "loc_start - location",
        *(f"{_id(item)} - receptacle loc_{item.id} - location" for item in places),
        *(f"{_id(item)} - object" for item in things),
        *(f"{name}Type - rtype" for name in sorted(kinds)),
        *(f"{name}Type - otype" for name in sorted(types)),
    ]
    init = [
        "(= (total-cost) 0)",
        "(atLocation agent1 loc_start)",
        *(fact for item in places for fact in _place(item)),
        *(fact for item in things for fact in _thing(item, _stands_on(item, places))),
        *(
            f"(canContain {kind}Type {name}Type)"
            for kind in sorted(kinds)
            for name in sorted(types & set(VAL_RECEPTACLE_OBJECTS.get(kind, ())))
        ),
    ]
    parts = "\n".join(declared), "\n".join(init), _goal(task)
    return "(define (problem house)\n(:domain alfred)\n(:objects\n{}\n)\n(:init\n{}\n)\n{}".format(*parts)


def _id(item: Item) -> str:
    """As ALFWorld writes AI2-THOR's ids: it reads type and number back out of them, and knows basins by the ending."""
    kind, number = item.type, _LAST - int(item.id.rpartition("_")[2])
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{number}_bar_{kind}"
    return f"{kind}_bar_{number}"


def _place(item: Item) -> Iterator[str]:
    yield f"(receptacleType {_id(item)} {item.type}Type)"
    yield f"(receptacleAtLocation {_id(item)} loc_{item.id})"
    if item.type in objects.OPENABLE:
        yield f"(openable {_id(item)})"
    if "open" in item.states:
        yield f"(opened {_id(item)})"


def _thing(item: Item, place: Item) -> Iterator[str]:
    yield f"(objectType {_id(item)} {item.type}Type)"
    yield f"(inReceptacle {_id(item)} {_id(place)})"
    yield f"(objectAtLocation {_id(item)} loc_{place.id})"
    yield from (f"({word} {_id(item)})" for word, types in TREATED.items() if item.type in types)


def _stands_on(item: Item, places: list[Item]) -> Item:
    """Where a thing is. ALFWorld uses a lamp only where it is on something: on the nearest furniture without a door."""
    if item.parent is not None:
        return next(place for place in places if place.id == item.parent)
    without_doors = [place for place in places if place.type not in objects.CONTAINERS]
    return min(without_doors, key=lambda place: dist(place.position, item.position))


def _goal(task: Task) -> str:
    """ALFWorld's own words for the goal of a task; they close the problem."""
    from alfworld.gen.goal_library import gdict

    words: str = gdict[task.type]["pddl"].replace("#", "-")
    return words.format(obj=task.object_target, recep=task.parent_target, toggle=task.toggle_target)
