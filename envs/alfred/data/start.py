"""Initial state of one ALFRED trial as a Scene. Fixtures, and the receptacle of each object, come from other trials."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean, median

from envs.alfred.data.mining import Fixture, RoomSurvey, Survey, official_id
from envs.alfred.data.receptacles import ReceptacleInference, is_nested
from envs.alfred.data.trajectories import Trajectory, room_of
from envs.alfred.goals import MATCHINGS, TREATMENTS, goal_met
from envs.alfred.objects import id_type
from envs.alfred.scene import Item, ObjectPose, Position, Scene, Task
from envs.alfred.world import World

_NEIGHBORS = {"Faucet": ("SinkBasin",), "DeskLamp": ("Desk", "SideTable", "Dresser")}
_HEIGHT = 0.8  # metres; the height of a fixture if no trial of any room shows its type


@dataclass(slots=True)
class _PlacedObject:
    """Object with its possible places, the likeliest first; the first remaining place is used."""

    item: Item
    places: list[tuple[float, str | None]]  # (weighted metres to the evidence, inf without any; receptacle id or None)

    @property
    def parent(self) -> str | None:
        return self.places[0][1]


def build_scene(trajectory: Trajectory, task: Task, survey: Survey) -> Scene:
    """Return the initial scene of a trial. The trial's goal is not met in it, just as in the simulator.

    As long as the inferred places meet the goal (by either matching), the least certain place at the goal is dropped.
    """
    room = survey.get(trajectory.floor_plan, RoomSurvey()).without_trial(trajectory.trial)
    fixtures = _fixtures(trajectory, task, room, survey)
    objects = _objects(trajectory, fixtures, ReceptacleInference(room))
    scene = _scene(trajectory, fixtures, objects)
    while any(goal_met(World(scene), task, matching) for matching in MATCHINGS):
        _drop_least_certain(task, scene, objects)
        scene = _scene(trajectory, fixtures, objects)
    return scene


def needed_fixtures(task: Task) -> tuple[str, ...]:
    """Return the fixture types without which a task cannot be done."""
    appliance = TREATMENTS[task.type].appliance if task.type in TREATMENTS else ""
    kinds = (task.parent_target, task.toggle_target, appliance, "Faucet" if appliance == "SinkBasin" else "")
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def _fixtures(trajectory: Trajectory, task: Task, room: RoomSurvey, survey: Survey) -> tuple[Item, ...]:
    """Return fixtures sorted by type and position. A needed type that no other trial shows gets a typical place."""
    fixtures = list(room.fixtures)
    for kind in needed_fixtures(task):
        if all(fixture.type != kind for fixture in fixtures):
            fixtures.append(Fixture("", kind, _typical_place(kind, fixtures, survey, trajectory.start.objects)))
    counts: Counter[str] = Counter()
    toggles = dict(trajectory.start.toggles)
    items = []
    for fixture in sorted(fixtures, key=lambda fixture: (fixture.type, fixture.position)):
        states = frozenset({"on"} if toggles.get(fixture.type) else ())
        items.append(Item(next_id(fixture.type, counts), fixture.type, fixture.position, None, states, fixture.id))
    return tuple(items)


def _typical_place(kind: str, fixtures: list[Fixture], survey: Survey, poses: tuple[ObjectPose, ...]) -> Position:
    """Return a typical place at the type's usual height: at a fixture of `_NEIGHBORS`, else amid all objects."""
    heights = [fixture.position[1] for room in survey.values() for fixture in room.fixtures if fixture.type == kind]
    height = median(heights) if heights else _HEIGHT
    neighbors = [fixture for fixture in fixtures if fixture.type in _NEIGHBORS.get(kind, ())]
    places = [neighbors[0].position] if neighbors else [pose.position for pose in poses] or [(0.0, 0.0, 0.0)]
    return fmean(x for x, _, _ in places), height, fmean(z for _, _, z in places)


def next_id(kind: str, counts: Counter[str]) -> str:
    """Return the next instance id of a type: "mug_2" after "mug_1"."""
    counts[kind] += 1
    return f"{id_type(kind)}_{counts[kind]}"


def _objects(trajectory: Trajectory, fixtures: tuple[Item, ...], inference: ReceptacleInference) -> list[_PlacedObject]:
    counts: Counter[str] = Counter()
    items = [object_item(pose, counts) for pose in trajectory.start.objects]
    ids: dict[str, str | None] = {fixture.source: fixture.id for fixture in fixtures if fixture.source} | {"": None}
    objects = []
    for item in items:
        guesses = inference.guesses(item.type, item.position)
        likely = [(distance, ids[fixture]) for distance, fixture in guesses if fixture in ids]
        containers = [outer for outer in items if is_nested(item.type, item.position, outer.type, outer.position)]
        objects.append(_PlacedObject(item, [*((inf, outer.id) for outer in containers), *likely, (inf, None)]))
    return objects


def object_item(pose: ObjectPose, counts: Counter[str]) -> Item:
    """Return the item of an object at its pose, in no receptacle yet."""
    source = official_id(pose.type, pose.position)
    return Item(next_id(pose.type, counts), pose.type, pose.position, source=source)


def _scene(trajectory: Trajectory, fixtures: tuple[Item, ...], objects: list[_PlacedObject]) -> Scene:
    objects_in_place = (replace(thing.item, parent=thing.parent) for thing in objects)
    room = room_of(trajectory.floor_plan)
    x, _, z = trajectory.start.agent
    return Scene(trajectory.floor_plan, room, (*fixtures, *objects_in_place), (x, z), start=trajectory.start)


def _drop_least_certain(task: Task, scene: Scene, objects: list[_PlacedObject]) -> None:
    """Drop the least certain place of a target object at the goal, so that the object's next best place is used."""
    kinds = {item.id: item.type for item in scene.items}
    parents = {item.id: item.parent for item in scene.items}

    def counts(thing: _PlacedObject) -> bool:
        inner = thing.parent
        outer = parents[inner] if inner else None
        at_goal = any(place and task.parent_target in kinds[place] for place in (inner, outer))
        return at_goal and task.object_target in thing.item.type

    del max(filter(counts, objects), key=lambda thing: thing.places[0][0]).places[0]
