"""Actions of the stand-in for AI2-THOR on one object: carrying, opening, switching, cutting, liquids and dirt.

The symbolic world determines the effects. Its failures become error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from envs.alfred import objects
from envs.alfred.state import Thing
from envs.alfred.thor_stub.actions.refusals import Refusal, refuse_if
from envs.alfred.thor_stub.room import Entity, Room
from envs.alfred.thor_stub.session import Session
from envs.alfred.thor_stub.traits import DIRTYABLE, FILLABLE, OPEN_TO_PUT, OPENABLE, PICKUPABLE, TOGGLEABLE
from envs.outcome import Outcome

_KNIFE = Thing("lent_knife", "Knife", (0.0, 0.0, 0.0))
LIQUIDS = ("water", "coffee", "wine")


def pick_up(session: Session, *, objectId: str, forceAction: bool = False, manualInteract: bool = False) -> str:
    entity, room = session.target(objectId, forceAction), session.room
    refuse_if(entity.type not in PICKUPABLE, f"{objectId} must have the property CanPickup to be picked up.")
    refuse_if(room.world.holding is not None, "Agent hand has something in it already! Can't pick up anything else")
    _require_success(room.world.pick(entity.thing))
    return objectId


def put(
    session: Session, *, objectId: str, forceAction: bool = False, placeStationary: bool = True, randomSeed: int = 0,
    putNearXY: bool = False,
) -> None:  # fmt: skip
    """Put the thing in the hand into or onto the receptacle ``objectId``."""
    room = session.room
    holding = room.world.holding
    if holding is None:
        raise Refusal("Can't place an object if Agent isn't holding anything")
    entity = session.target(objectId, forceAction)
    refuse_if(not entity.thing or not room.world[entity.thing].receptacle, "This target object is NOT a receptacle!")
    if entity.type in OPEN_TO_PUT and not is_open(room, entity):
        raise Refusal("Target openable Receptacle is CLOSED, can't place if target is not open!")
    if entity.type == "StoveBurner" and room.world[entity.thing].contents:
        raise Refusal("another object's collision is blocking held object from being placed")
    _require_success(room.world.put(holding, entity.thing))


def drop(session: Session, *, forceAction: bool = False, autoSimulation: bool = True) -> None:
    if session.room.world.holding is None:
        raise Refusal("Nothing is in the agent's hand to drop!")
    _require_success(session.room.world.drop())


def is_open(room: Room, entity: Entity) -> bool:
    thing = room.thing(entity)
    return "open" in room.marks[entity.key] or bool(thing and thing.openable and thing.is_open)


def is_on(room: Room, entity: Entity) -> bool:
    thing = room.thing(entity)
    return "on" in room.marks[entity.key] or bool(thing and thing.is_on)


def open_(
    session: Session, *, objectId: str, openness: float = 1.0, forceAction: bool = False, returnToStart: bool = True,
    stopAtNonStaticCol: bool = False, physicsInterval: float | None = None,
) -> None:  # fmt: skip
    """Open an object, or close it if ``openness`` is 0. If it is already in that state, do nothing."""
    refuse_if(not 0 <= openness <= 1, "openness must be in [0:1]")
    room, entity = session.room, session.target(objectId, forceAction)
    refuse_if(entity.type not in OPENABLE, f"{objectId} is not an Openable object")
    refuse_if(entity.type == "Microwave" and is_on(room, entity), "Target must be OFF to open!")
    if is_open(room, entity) == (openness > 0):
        return
    if entity.type not in objects.OPENABLE:
        mark(room, entity, "open", openness > 0)
    else:
        _require_success(room.world.open(entity.thing) if openness > 0 else room.world.close(entity.thing))
        if entity.type == "Fridge" and openness == 0:
            for content in room.world.all_contents(entity.thing):
                room.marks[content.id] = room.marks[content.id] - {"hot"} | {"cold"}


def close(
    session: Session, *, objectId: str, forceAction: bool = False, returnToStart: bool = True,
    stopAtNonStaticCol: bool = False, physicsInterval: float | None = None,
) -> None:  # fmt: skip
    open_(session, objectId=objectId, openness=0.0, forceAction=forceAction)


def _toggle(word: str) -> Callable[..., None]:
    """Return the action that turns an object on or off."""

    def toggle(session: Session, *, objectId: str, forceAction: bool = False) -> None:
        room, entity, on = session.room, session.target(objectId, forceAction), word == "on"
        message = "target object is controlled by another sim object. target object cannot be turned on/off directly"
        refuse_if(entity.type == "StoveBurner", message)
        refuse_if(entity.type not in TOGGLEABLE, "object is not toggleable.")
        refuse_if(is_on(room, entity) == on, f"can't toggle object {word} if it's already {word}!")
        refuse_if(on and entity.type == "Microwave" and is_open(room, entity), "Target must be closed to Toggle On!")
        switch(room, entity, on)

    return toggle


toggle_on, toggle_off = map(_toggle, ("on", "off"))


def switch(room: Room, entity: Entity, on: bool) -> None:
    """Switch an object on or off, with the effects on what it heats, cleans or controls."""
    thing = room.thing(entity)
    if thing is None or not thing.toggleable:
        mark(room, entity, "on", on)
        if entity.controls in room.entities:
            mark(room, room.entities[entity.controls], "on", on)
        return
    _require_success(room.world.turn_on(thing.id) if on else room.world.turn_off(thing.id))
    if on and thing.type == "Faucet":
        for thing_id in room.world.cleaned:
            room.marks[thing_id].discard("dirty")
    if on and thing.type == "Microwave":
        for content in room.world.all_contents(thing.id):
            room.marks[content.id] = room.marks[content.id] - {"cold"} | {"hot", "cooked"}


def slice_(session: Session, *, objectId: str, forceAction: bool = False) -> None:
    """Cut an object, even without a knife. The whole object stays in the metadata, marked as sliced and invisible."""
    room, entity = session.room, session.target(objectId, forceAction)
    if "sliced" in room.marks[entity.key]:
        return
    thing = room.thing(entity)
    if thing is None or thing.type not in objects.SLICEABLE:
        raise Refusal(f"{entity.name} Does not have the CanBeSliced property!")
    refuse_if(room.carries(entity), "target object cannot be sliced if it is in the agent's hand")
    before = set(room.world.things)
    with _knife_in_hand(room):
        _require_success(room.world.slice(thing.id))
    marks = room.marks.pop(thing.id, set())
    del room.of_thing[thing.id]
    entity.thing, entity.place = "", thing.position
    room.marks[entity.id] = {"sliced"}
    pieces = [piece for piece in room.world.things.values() if piece.id not in before]
    for number, piece in enumerate(pieces):
        name = f"{entity.name}_Slice_{number + 1}"
        room.add(piece, f"{entity.id}|{piece.type}_{number}", name, entity.rotation)
        room.marks[piece.id] = marks & {"cooked", "hot", "cold"}


@contextmanager
def _knife_in_hand(room: Room) -> Iterator[None]:
    """Put a knife in the agent's hand inside the ``with`` block: the symbolic world cuts only with a knife."""
    world, holding = room.world, room.world.holding
    world.things[_KNIFE.id], world.holding = _KNIFE, _KNIFE.id
    try:
        yield
    finally:
        del world.things[_KNIFE.id]
        world.holding = holding


def dirty(session: Session, *, objectId: str, forceAction: bool = False) -> None:
    entity = _target_of_type(session, objectId, forceAction, DIRTYABLE, "CanBeDirty")
    refuse_if("dirty" in session.room.marks[entity.key], f"{entity.name} is already dirty!")
    mark(session.room, entity, "dirty", True)


def clean(session: Session, *, objectId: str, forceAction: bool = False) -> None:
    entity = _target_of_type(session, objectId, forceAction, DIRTYABLE, "dirtyable")
    refuse_if("dirty" not in session.room.marks[entity.key], f"{entity.name} is already Clean!")
    mark(session.room, entity, "dirty", False)


def fill(session: Session, *, objectId: str, fillLiquid: str = "water", forceAction: bool = False) -> None:
    entity = _target_of_type(session, objectId, forceAction, FILLABLE, "CanBeFilled")
    refuse_if(fillLiquid not in LIQUIDS, f"{fillLiquid} is not a valid Liquid Type")
    session.room.marks[entity.key].add(fillLiquid)


def empty(session: Session, *, objectId: str, forceAction: bool = False) -> None:
    entity = _target_of_type(session, objectId, forceAction, FILLABLE, "CanBeFilled")
    refuse_if(session.room.marks[entity.key].isdisjoint(LIQUIDS), "object already empty")
    session.room.marks[entity.key].difference_update(LIQUIDS)


def _target_of_type(session: Session, object_id: str, force: bool, kinds: frozenset[str], ability: str) -> Entity:
    entity = session.target(object_id, force)
    refuse_if(entity.type not in kinds, f"{entity.name} does not have {ability} property!")
    return entity


def mark(room: Room, entity: Entity, word: str, present: bool) -> None:
    """Add ``word`` to the marks of an entity if ``present``, else remove it."""
    marks = room.marks[entity.key]
    room.marks[entity.key] = marks | {word} if present else marks - {word}


def _require_success(outcome: Outcome) -> None:
    refuse_if(not outcome.ok, outcome.message)
