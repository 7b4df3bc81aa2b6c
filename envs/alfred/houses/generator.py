"""Generator of houses from seeds: furnished rooms with AI2-THOR's types of things, and tasks of ALFRED's seven types.

A house is accepted only if the hash of its furniture belongs to its seed's split, so that splits share no house.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from envs.alfred.houses.drawing import TASK_ROOMS, TASK_TYPES, draw_tasks, start_state
from envs.alfred.houses.layout import House, furnish
from envs.alfred.houses.rooms import FLOOR_TYPES, HOLDS_ONE, OBJECT_WEIGHTS, PLACE_WEIGHT, SURFACES
from envs.alfred.language.names import PLACE_NAMES
from envs.alfred.language.phrases import phrase
from envs.alfred.objects import MOVABLE_RECEPTACLES, ROOMS, id_type, may_hold
from envs.alfred.objects import RECEPTACLES as RECEPTACLE_TYPES
from envs.alfred.scene import Episode, Item, Position, Scene, Task
from envs.splits import seed_of, split_of, split_of_hash
from keep_agent.errors import ConfigError, DataError

RECEPTACLE_RANGE = (8, 30)
NESTED_SHARE = 0.05  # share of small things that start in a bowl, mug, box, ...
FLOOR_SHARE = 0.3  # share of balls, boots, ... that lie on the floor
_ATTEMPTS = 1000


def house_seed(split: str, index: int) -> int:
    """Return the seed of a split's index-th house; splits share neither seeds nor houses."""
    return seed_of(split, index, "house")


def generate_episode(seed: int, stream: int = 1, room: str | None = None, task_type: str | None = None) -> Episode:
    """Return a house with ``stream`` tasks, to be done one after another.

    ``room`` and ``task_type`` (of the first task) are drawn if None. If the agent moves objects only as the tasks
    require, every goal can be reached, and is not yet met when its task begins. Raises ConfigError for an unknown or
    impossible choice, DataError if no room offers that many tasks.
    """
    _check(stream, room, task_type)
    rng = Random(seed)
    kind = task_type or rng.choice([name for name in TASK_TYPES if room is None or room in TASK_ROOMS[name]])
    for _ in range(_ATTEMPTS):
        room_type = room or rng.choice(TASK_ROOMS[kind])
        house = draw_house(room_type, split_of(seed), rng)
        items = _items(house, draw_objects(house, rng, crowded=stream > 2), rng)
        tasks = draw_tasks(kind, stream, start_state(items), room_type, rng)
        if len(tasks) == stream:
            return _episode(seed, house, items, tasks, rng)
    raise DataError(f"no {room or 'room'} offers {stream} tasks in a row; ask for fewer (env.stream)")


def _check(stream: int, room: str | None, task_type: str | None) -> None:
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks is too short; use at least 1")
    if room is not None and room not in ROOMS:
        raise ConfigError(f"unknown room {room!r}; choose one of {', '.join(ROOMS)}")
    if task_type is not None and task_type not in TASK_ROOMS:
        raise ConfigError(f"unknown task type {task_type!r}; choose one of {', '.join(TASK_TYPES)}")
    if room and task_type and room not in TASK_ROOMS[task_type]:
        raise ConfigError(f"{task_type} is not done in a {room}; choose one of {', '.join(TASK_ROOMS[task_type])}")


def _episode(seed: int, house: House, items: tuple[Item, ...], tasks: list[Task], rng: Random) -> Episode:
    name = f"house-{seed}"
    present = frozenset(item.type for item in items)
    worded_tasks = tuple(
        replace(
            task,
            id=f"{name}-{index}",
            instruction=phrase(task, rng, present, _source(task, items) if index == 0 else ""),
        )
        for index, task in enumerate(tasks)
    )
    scene = Scene(name, house.room, items, rng.choice(house.reachable), house.reachable)
    return Episode(f"{name}-x{len(tasks)}", scene, worded_tasks)


def _source(task: Task, items: tuple[Item, ...]) -> str:
    """Return the type of fixture in or on which all objects of the target type start; "" if there is none."""
    kinds = {item.id: item.type for item in items}
    places = {kinds.get(item.parent or "", "") for item in items if item.type == task.object_target}
    return places.pop() if len(places) == 1 and places <= set(PLACE_NAMES) else ""


def draw_house(room: str, split: str, rng: Random) -> House:
    """Return a furnished room of a split with 8 to 30 receptacles."""
    while True:
        house = furnish(room, rng)
        count = sum(kind in RECEPTACLE_TYPES for kind, _ in house.fixtures)
        if RECEPTACLE_RANGE[0] <= count <= RECEPTACLE_RANGE[1] and split_of_hash(house.signature) == split:
            return house


def draw_objects(house: House, rng: Random, crowded: bool = False) -> list[str]:
    """Return the types of 8 to 30 objects (crowded: 14 to 30), with at most 3 objects of a type."""
    weights = OBJECT_WEIGHTS[house.room]
    size = round(rng.triangular(14, 30, 18) if crowded else rng.triangular(8, 30, 11))
    counts: Counter[str] = Counter()
    while counts.total() < size:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        counts[kind] += min(rng.choice((1, 1, 2, 2, 3)), 3 - counts[kind], size - counts.total())
    return sorted(counts.elements())


class _Placer:
    """Placer of things: assigns ids, and draws the objects' initial places."""

    def __init__(self, house: House, rng: Random) -> None:
        self.rng = rng
        self.reachable = house.reachable
        self.counts: Counter[str] = Counter()
        self.filled: Counter[str] = Counter()
        self.fixtures = [self.item(kind, position, None) for kind, position in house.fixtures]
        self.objects: list[Item] = []

    def item(self, kind: str, position: Position, parent: str | None) -> Item:
        self.counts[kind] += 1
        return Item(f"{id_type(kind)}_{self.counts[kind]}", kind, position, parent)

    def add(self, kind: str) -> None:
        """Place one object, or omit it if the room has no suitable place."""
        place = self._place(kind)
        if place is not None:
            self.filled[place.id] += 1
            self.objects.append(self.item(kind, self._spot(place), place.id))
        elif kind in FLOOR_TYPES:
            x, z = self.rng.choice(self.reachable)
            self.objects.append(self.item(kind, (x, 0.05, z), None))

    def _place(self, kind: str) -> Item | None:
        if kind in FLOOR_TYPES and self.rng.random() < FLOOR_SHARE:
            return None
        carriers = [item for item in self.objects if may_hold(item.type, kind) and not self.filled[item.id]]
        if carriers and kind not in MOVABLE_RECEPTACLES and self.rng.random() < NESTED_SHARE:
            return self.rng.choice(carriers)
        full = {item.id for item in self.fixtures if item.type in {*HOLDS_ONE, "Microwave"} and self.filled[item.id]}
        places = [item for item in self.fixtures if may_hold(item.type, kind) and item.id not in full]
        weights = [PLACE_WEIGHT.get(item.type, 1.0) for item in places]
        return self.rng.choices(places, weights)[0] if any(weights) else None

    def _spot(self, place: Item) -> Position:
        width, depth = SURFACES.get(place.type, (0.2, 0.2)) if place.type not in MOVABLE_RECEPTACLES else (0.0, 0.0)
        x, y, z = place.position
        dx, dz = self.rng.uniform(-width / 2, width / 2), self.rng.uniform(-depth / 2, depth / 2)
        return round(x + dx, 2), round(y + 0.05, 2), round(z + dz, 2)


def _items(house: House, kinds: list[str], rng: Random) -> tuple[Item, ...]:
    """Return fixtures, then objects; bowls, boxes, ... are placed first, so that small things can start in them."""
    placer = _Placer(house, rng)
    for kind in sorted(kinds, key=lambda kind: kind not in MOVABLE_RECEPTACLES):
        placer.add(kind)
    return (*placer.fixtures, *sorted(placer.objects, key=lambda item: item.type))
