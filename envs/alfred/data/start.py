"""The start of one official trial: its fixtures, its objects and where each of them is, as a Scene.

The trial's own demonstration is never looked at: fixtures and labelled neighbours come from all other trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from envs.alfred.data.floor_plans import room_of
from envs.alfred.data.mining import Fixture, Room, Survey, official_id
from envs.alfred.data.receptacles import Inference, nested
from envs.alfred.data.trajectories import Trajectory
from envs.alfred.goals import MATCHINGS, succeeded
from envs.alfred.objects import snake
from envs.alfred.scene import Item, Placed, Position, Scene, Task
from envs.alfred.world import World

_NEEDED = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Faucet"),
    "pick_heat_then_place_in_recep": ("Microwave",),
    "pick_cool_then_place_in_recep": ("Fridge",),
}
_STANDS_BY = {"Faucet": ("SinkBasin",), "DeskLamp": ("Desk", "SideTable", "Dresser")}
_HEIGHT = 0.8  # metres, of a fixture nobody has ever seen


@dataclass(slots=True)
class _Object:
    """An object with its possible places, the likeliest first; the first that is left counts."""

    item: Item
    places: list[tuple[float, str | None]] = field(default_factory=list)  # (distance in metres, item id or None)

    @property
    def parent(self) -> str | None:
        return self.places[0][1]


def build_scene(trajectory: Trajectory, task: Task, survey: Survey) -> Scene:
    """The scene in which a trial starts, with every goal of its task still to be reached.

    The initial goal is false in the simulator. Where the inferred places would fulfil it, the least certain of the
    places that do so is given up for the next best, until the goal is false in both ways of matching.
    """
    room = survey.get(trajectory.floor_plan, Room()).without(trajectory.trial)
    fixtures = _fixtures(trajectory, task, room, survey)
    objects = _objects(trajectory, fixtures, Inference(room))
    scene = _scene(trajectory, fixtures, objects)
    while any(succeeded(World(scene), task, matching) for matching in MATCHINGS):
        _give_up_one(task, scene, objects)
        scene = _scene(trajectory, fixtures, objects)
    return scene


def needed_fixtures(task: Task) -> tuple[str, ...]:
    """Fixture types without which a task cannot be done."""
    named = (task.parent_target, task.toggle_target, *_NEEDED.get(task.type, ()))
    return tuple(dict.fromkeys(kind for kind in named if kind))


def _fixtures(trajectory: Trajectory, task: Task, room: Room, survey: Survey) -> tuple[Item, ...]:
    """Fixtures by type and position. One the task needs and no other trial has shown stands at a typical place."""
    found = list(room.fixtures)
    for kind in needed_fixtures(task):
        if all(fixture.type != kind for fixture in found):
            found.append(Fixture("", kind, _typical_place(kind, found, survey, trajectory.start.objects)))
    counts: Counter[str] = Counter()
    switched = dict(trajectory.start.toggles)
    items = []
    for fixture in sorted(found, key=lambda fixture: (fixture.type, fixture.position)):
        states = frozenset({"on"} if switched.get(fixture.type) else ())
        items.append(Item(next_id(fixture.type, counts), fixture.type, fixture.position, None, states, fixture.id))
    return tuple(items)


def _typical_place(kind: str, found: list[Fixture], survey: Survey, poses: tuple[Placed, ...]) -> Position:
    """Above what it stands by, else in the middle of the room; at the height usual for its type."""
    same = [fixture.position[1] for room in survey.values() for fixture in room.fixtures if fixture.type == kind]
    height = median(same) if same else _HEIGHT
    beside = [fixture for fixture in found if fixture.type in _STANDS_BY.get(kind, ())]
    places = [beside[0].position] if beside else [pose.position for pose in poses] or [(0.0, 0.0, 0.0)]
    return fmean(x for x, _, _ in places), height, fmean(z for _, _, z in places)


def next_id(kind: str, counts: Counter[str]) -> str:
    """The next instance id of a type: "mug_2" after "mug_1"."""
    counts[kind] += 1
    return f"{snake(kind)}_{counts[kind]}"


def _objects(trajectory: Trajectory, fixtures: tuple[Item, ...], inference: Inference) -> list[_Object]:
    counts: Counter[str] = Counter()
    items = [
        Item(next_id(one.type, counts), one.type, one.position, None, frozenset(), official_id(one.type, one.position))
        for one in trajectory.start.objects
    ]
    ids: dict[str, str | None] = {fixture.source: fixture.id for fixture in fixtures if fixture.source} | {"": None}
    objects = []
    for item in items:
        guesses = inference.guesses(item.type, item.position)
        likely = [(distance, ids[fixture]) for distance, fixture in guesses if fixture in ids]
        objects.append(_Object(item, [*_containers(item, items), *likely, (inf, None)]))
    return objects


def _containers(item: Item, items: Iterable[Item]) -> list[tuple[float, str | None]]:
    """Bowls, mugs, ... the object lies in; the least certain of all places, hence without a near distance."""
    return [(inf, other.id) for other in items if nested(item.type, item.position, other.type, other.position)]


def _scene(trajectory: Trajectory, fixtures: tuple[Item, ...], objects: list[_Object]) -> Scene:
    placed = (_at(thing.item, thing.parent) for thing in objects)
    room = room_of(trajectory.floor_plan)
    x, _, z = trajectory.start.agent
    return Scene(trajectory.floor_plan, room, (*fixtures, *placed), (x, z), start=trajectory.start)


def _at(item: Item, parent: str | None) -> Item:
    return Item(item.id, item.type, item.position, parent, item.states, item.source)


def _give_up_one(task: Task, scene: Scene, objects: list[_Object]) -> None:
    """Drop the least certain place of an object that counts for the goal."""
    kinds = {item.id: item.type for item in scene.items}
    parents = {item.id: item.parent for item in scene.items}

    def counts(thing: _Object) -> bool:
        inner = thing.parent
        outer = parents[inner] if inner else None
        wanted = any(place and task.parent_target in kinds[place] for place in (inner, outer))
        return wanted and task.object_target in thing.item.type

    least_certain = max(filter(counts, objects), key=lambda thing: thing.places[0][0])
    del least_certain.places[0]
