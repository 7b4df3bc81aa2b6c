"""Room of the stand-in for AI2-THOR: a symbolic world, plus ids, names and states that only AI2-THOR has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import cos, radians, sin

from envs.alfred.data.mining import Fixture, RoomSurvey
from envs.alfred.data.receptacles import ReceptacleInference, is_nested
from envs.alfred.objects import PICKUPABLE
from envs.alfred.scene import Item, Position, Scene
from envs.alfred.state import Thing
from envs.alfred.thor_stub.actions.refusals import exception
from envs.alfred.thor_stub.geometry import HEIGHT, AgentPose, Point, Sight, floor_points
from envs.alfred.thor_stub.traits import OPEN_AT_FIRST, free_id, game_name, is_loose, object_id, size_of, thor5_type
from envs.alfred.world import World

Extras = Mapping[str, Position]  # by object id: positions of objects that the symbolic world lacks
ORIGIN: Position = (0.0, 0.0, 0.0)
UPRIGHT: Position = (0.0, 0.0, 0.0)  # degrees around the x, y and z axes
HAND_OFFSET = (0.5, -0.25)  # metres forward and up from the eye


@dataclass(slots=True)
class Entity:
    """Object as AI2-THOR lists it. ``thing`` is its id in the symbolic world, which lacks windows, for example."""

    id: str
    type: str  # name of the type in AI2-THOR 5.0
    name: str
    thing: str = ""  # id in the symbolic world, or ""
    place: Position = ORIGIN  # position of an entity without a thing
    rotation: Position = UPRIGHT
    controls: str = ""  # object id of the stove burner that a knob turns on

    @property
    def key(self) -> str:
        """Key of the entity in `Room.marks`."""
        return self.thing or self.id


class ReceptacleGuesser:
    """Inference of objects' receptacles in one room, from a survey of demonstrations or from the fixtures alone."""

    def __init__(self, fixtures: Iterable[Item], survey: RoomSurvey | None = None) -> None:
        """Store the fixtures; an item's ``source`` is its id in ``survey``."""
        items = [item for item in fixtures if item.source or survey is None]
        if survey is None:
            survey = RoomSurvey(tuple(Fixture(item.id, item.type, item.position) for item in items))
            self._ids = {item.id: item.id for item in items}
        else:
            self._ids = {item.source: item.id for item in items}
        self._inference = ReceptacleInference(survey)

    def guess(self, kind: str, position: Position, containers: Iterable[Item]) -> str | None:
        """Return the id of the item that holds an object: a container right below it, else a fixture, or None."""
        for item in containers:
            if is_nested(kind, position, item.type, item.position):
                return item.id
        guesses = self._inference.guesses(kind, position)
        return self._ids.get(guesses[0][1]) if guesses else None


class Room:
    """A room and the agent in it. ``version`` grows with every action that may change more than the agent's pose."""

    def __init__(self, scene: Scene, name: str, spots: Iterable[Point] = (), y: float = HEIGHT) -> None:
        """Build the room of a scene; ``spots``: additional standing points, ``y``: the agent's height in metres."""
        self.name = name
        self.world = World(scene)
        self.body = AgentPose(*scene.agent, y=y)
        self.points = floor_points(scene, spots)
        self.entities: dict[str, Entity] = {}  # by object id
        self.of_thing: dict[str, Entity] = {}  # by thing id
        self.marks: defaultdict[str, set[str]] = defaultdict(set)  # states by `Entity.key`: "dirty", "water", ...
        self.version = 0
        for thing in self.world.things.values():
            self.add(thing)
            if thing.type in OPEN_AT_FIRST:
                self.marks[thing.id].add("open")
        self._furnish()

    @cached_property
    def guesser(self) -> ReceptacleGuesser:
        """Inference of objects' receptacles from the fixtures alone, unless a room's creator sets another one."""
        return ReceptacleGuesser(item for item in self.world.scene.items if item.type not in PICKUPABLE)

    def add(self, thing: Thing, given_id: str = "", name: str = "", rotation: Position = UPRIGHT) -> None:
        """Add the entity of a thing."""
        entity = self.add_extra(thor5_type(thing.type), thing.position, given_id, name=name)
        entity.thing, entity.place, entity.rotation = thing.id, ORIGIN, rotation
        self.of_thing[thing.id] = entity

    def add_extra(
        self, kind: str, position: Position, given_id: str = "", controls: str = "", name: str = ""
    ) -> Entity:
        """Add an entity without a thing of the symbolic world, with a new id and name unless these are given."""
        new_id = given_id or free_id(kind, position, self.entities)
        entity = Entity(new_id, kind, name or game_name(self.name, kind, new_id), "", position, controls=controls)
        self.entities[new_id] = entity
        return entity

    def _furnish(self) -> None:
        """Add entities of types that ALFRED lacks; AI2-THOR's rooms have such objects, so clients must handle them."""
        (x0, z0), (x1, z1) = self.bounds
        middle = (x0 + x1) / 2
        for kind, position in (
            ("Floor", (0.0, 0.0, 0.0)),
            ("Window", (middle, 1.6, z1 + 0.2)),
            ("Chair", (x0, 0.45, z0)),
            ("LightSwitch", (x0 - 0.2, 1.2, (z0 + z1) / 2)),
        ):
            self.add_extra(kind, position)
        for entity in tuple(self.of_thing.values()):
            x, y, z = self.position(entity)
            if entity.type == "StoveBurner":
                self.add_extra("StoveKnob", (x, y - 0.1, z + 0.2), controls=entity.id)
            elif entity.id.count("|") > 3:
                outer_id = entity.id.rpartition("|")[0]  # of a basin: "Sink|..|SinkBasin" -> "Sink|.."
                self.add_extra(outer_id.partition("|")[0], (x, y, z), given_id=outer_id)

    # queries

    @property
    def bounds(self) -> tuple[Point, Point]:
        """Corners of the area of all standing points."""
        xs, zs = zip(*self.points, strict=True) if self.points else ((0.0,), (0.0,))
        return (min(xs), min(zs)), (max(xs), max(zs))

    def find(self, object_id: str) -> Entity:
        if object_id not in self.entities:
            message = f"objectId: {object_id} is not the objectId on any object in the scene!"
            raise exception("ArgumentException", message)
        return self.entities[object_id]

    def thing(self, entity: Entity) -> Thing | None:
        return self.world.things.get(entity.thing)

    def carries(self, entity: Entity) -> bool:
        """Return whether an entity is in the hand, or in the thing in the hand."""
        holding = self.world.holding
        return holding is not None and bool(entity.thing) and self.world.place_of(entity.thing) == holding

    def position(self, entity: Entity) -> Position:
        if not entity.thing:
            return entity.place
        return self.hand if self.carries(entity) else self.world.things[entity.thing].position

    @property
    def hand(self) -> Position:
        """Position of a carried thing."""
        x, y, z = self.body.eye
        turn = radians(self.body.rotation)
        return x + HAND_OFFSET[0] * sin(turn), y + HAND_OFFSET[1], z + HAND_OFFSET[0] * cos(turn)

    def hidden(self, entity: Entity) -> bool:
        """Return whether an entity is behind a closed door, or has been cut."""
        if not entity.thing:
            return "sliced" in self.marks[entity.id]
        return self.world.hidden_in(entity.thing) is not None

    def sees(self, entity: Entity, sight: Sight) -> bool:
        """Return whether the agent sees an entity; it always sees a carried one."""
        if self.hidden(entity):
            return False
        if self.carries(entity):
            return True
        return sight.sees(self.body, self.position(entity), size_of(entity.type)[0])

    def receptacles_around(self, entity: Entity) -> Iterator[Entity]:
        """Yield the receptacles around an entity, innermost first, or else the floor; none for carried things."""
        thing = self.thing(entity)
        if thing is None or self.carries(entity):
            return
        if not thing.pickupable and thing.parent is not None:
            yield self.of_thing[thing.parent]
        for outer in self.world.holders(thing.id):
            yield self.of_thing[outer.id]
        if self.world.on_floor(thing.id):
            yield next(entity for entity in self.entities.values() if entity.type == "Floor")

    # changes

    def place_agent(self, body: AgentPose) -> None:
        self.body = body
        self.world.agent = type(self.world.agent)(body.x, body.z)

    def items(self) -> Iterator[Item]:
        """Yield the room's current things as items of a scene."""
        for thing in self.world.things.values():
            states = ("open" if thing.is_open else "closed", *(["on"] if thing.is_on else []))
            yield Item(thing.id, thing.type, thing.position, thing.parent, frozenset(states), thing.source)

    def replace_loose(
        self, items: Sequence[Item], names: Mapping[str, str], rotations: Mapping[str, Position], extras: Extras
    ) -> None:
        """Replace things by ``items``, and loose entities without a thing by ``extras``. Loose entities get new ids."""
        old = self.world
        self.world = World(replace(old.scene, items=tuple(items)))
        self.world.agent = old.agent
        for mark in ("heated", "cooled", "cleaned"):
            getattr(self.world, mark).update(getattr(old, mark).intersection(self.world.things))
        fixed, extra_entities = self.of_thing, [entity for entity in self.entities.values() if not entity.thing]
        self.entities, self.of_thing = {}, {}
        for thing in self.world.things.values():
            entity = fixed.get(thing.id)
            is_fixed = entity is not None and not is_loose(entity.type)
            new_id = entity.id if is_fixed else object_id(thor5_type(thing.type), thing.position)
            self.add(thing, new_id, names[thing.id], rotations.get(thing.id, UPRIGHT))
        for extra in extra_entities:
            if extra.id in extras:
                self.add_extra(extra.type, extras[extra.id], object_id(extra.type, extras[extra.id]), name=extra.name)
            elif not is_loose(extra.type):
                self.entities[extra.id] = extra
