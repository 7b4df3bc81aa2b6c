"""Actions of the stand-in for AI2-THOR on many objects: ``SetObjectPoses`` and ``SetObjectStates``.

``SetObjectPoses`` removes all loose objects (those that can be picked up or moved), and restores the listed ones with
new ids; if several get the same id, it keeps the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envs.alfred.objects import MOVABLE_RECEPTACLES, id_type
from envs.alfred.scene import Item, Position
from envs.alfred.thor_stub.actions.handling import is_on, is_open, mark, switch
from envs.alfred.thor_stub.actions.refusals import refuse_if
from envs.alfred.thor_stub.geometry import vector
from envs.alfred.thor_stub.room import Entity, Room
from envs.alfred.thor_stub.session import Session
from envs.alfred.thor_stub.traits import DIRTYABLE, FILLABLE, OPENABLE, TOGGLEABLE, is_loose, object_id, thor5_type

MAX_SHIFT = 0.01  # metres along each axis within which an object counts as unmoved


@dataclass(slots=True)
class _Layout:
    """Layout of the room after the action: ordered items, names and rotations, by item id."""

    items: dict[str, Item] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    rotations: dict[str, Position] = field(default_factory=dict)
    source_things: dict[str, str] = field(default_factory=dict)  # listed item's id -> the moved or copied thing's id
    extras: dict[str, Position] = field(default_factory=dict)  # new positions of objects without a thing, by object id


def set_object_poses(
    session: Session,
    *,
    objectPoses: list[dict[str, Any]] | None = None,
    placeStationary: bool = True,
    **ignored: object,
) -> str:
    """Place the listed objects; an unknown name makes the action fail after all other objects are placed."""
    remedy = "Please make sure each element in the objectPoses list is initialized."
    refuse_if(not objectPoses, f"objectPoses was not initialized correctly. {remedy}")
    room, layout = session.room, _Layout()
    before = {item.id: item for item in room.items()}
    unknown = _place_listed(room, layout, before, objectPoses)
    _add_fixed(room, layout, before)
    _drop_duplicates(layout)
    _set_parents(room, layout, before)
    room.replace_loose(list(layout.items.values()), layout.names, layout.rotations, layout.extras)
    for copy, original in layout.source_things.items():
        room.marks[copy] = set(room.marks[original])
    refuse_if(bool(unknown), unknown)
    return ""


def _place_listed(room: Room, layout: _Layout, before: Mapping[str, Item], poses: list[dict[str, Any]]) -> str:
    """Add the listed things to the layout (copies last). Return the error about the last unknown name, or ""."""
    names = {
        entity.name: entity
        for entity in room.entities.values()
        if is_loose(entity.type) and "sliced" not in room.marks[entity.key]
    }
    copies, unknown = [], ""
    for number, pose in enumerate(poses):
        entity = names.get(pose["objectName"])
        if entity is None:
            unknown = f"No Pickupable or Moveable object of name {pose['objectName']} found in scene."
            continue
        if not entity.thing:
            layout.extras[entity.id] = vector(pose["position"])
            continue
        item = replace(before[entity.thing], position=vector(pose["position"]))
        name = entity.name
        if item.id in layout.source_things:
            item = replace(item, id=_next_id(item, [*before, *layout.source_things]))
            name = f"{name}(Clone)_copy_{number}"
            copies.append(item)
        else:
            layout.items[item.id] = item
        layout.source_things[item.id] = entity.thing
        layout.names[item.id] = name
        layout.rotations[item.id] = vector(pose.get("rotation") or {})
    order = {thing: number for number, thing in enumerate(before)}
    in_order = sorted(layout.items.values(), key=lambda item: order[item.id])
    layout.items = {item.id: item for item in (*in_order, *copies)}
    return unknown


def _next_id(item: Item, names: list[str]) -> str:
    """Return the first free instance id of the item's type."""
    kind = id_type(item.type)
    return next(name for number in range(1, len(names) + 2) if (name := f"{kind}_{number}") not in names)


def _add_fixed(room: Room, layout: _Layout, before: Mapping[str, Item]) -> None:
    """Add all things that are not loose, and sort the items in the room's order; copies stay last."""
    items = {}
    for item in before.values():
        entity = room.of_thing[item.id]
        if item.id in layout.items:
            items[item.id] = layout.items[item.id]
        elif not is_loose(entity.type):
            items[item.id] = item
            layout.names[item.id] = entity.name
            layout.rotations[item.id] = entity.rotation
    layout.items = items | layout.items


def _drop_duplicates(layout: _Layout) -> None:
    last = {
        object_id(thor5_type(item.type), item.position): item.id
        for item in layout.items.values()
        if item.id in layout.source_things
    }
    for name in layout.source_things.keys() - last.values():
        del layout.items[name], layout.source_things[name]


def _set_parents(room: Room, layout: _Layout, before: Mapping[str, Item]) -> None:
    for item in layout.items.values():
        parent = item.parent if item.parent in layout.items else None
        if item.id in layout.source_things and room.world.things[layout.source_things[item.id]].pickupable:
            parent = _parent(room, layout, before, item)
        layout.items[item.id] = replace(item, parent=parent)


def _parent(room: Room, layout: _Layout, before: Mapping[str, Item], item: Item) -> str | None:
    """Return the earlier receptacle if neither it nor the object has moved, else infer it from the position."""
    if item.id in before and item.id != room.world.holding and _is_unmoved(before, layout, item.id):
        parent = before[item.id].parent
        if parent is None or (parent in layout.items and _is_unmoved(before, layout, parent)):
            return parent
    containers = (
        container
        for container in layout.items.values()
        if container.id in layout.source_things and container.id != item.id and container.type in MOVABLE_RECEPTACLES
    )
    parent = room.guesser.guess(item.type, item.position, containers)
    return parent if parent in layout.items else None


def _is_unmoved(before: Mapping[str, Item], layout: _Layout, name: str) -> bool:
    old, new = before[name].position, layout.items[name].position
    return max(abs(a - b) for a, b in zip(old, new, strict=True)) <= MAX_SHIFT


_STATES: Mapping[str, tuple[str, frozenset[str]]] = {
    "toggleable": ("isToggled", TOGGLEABLE),
    "openable": ("isOpen", OPENABLE),
    "dirtyable": ("isDirty", DIRTYABLE),
    "canFillWithLiquid": ("isFilledWithLiquid", FILLABLE),
}


def set_object_states(session: Session, *, SetObjectStates: dict[str, Any], **ignored: object) -> None:
    """Set a state of all objects of a type, by default of every type that has the state. Skip objects that refuse."""
    change = SetObjectStates.get("stateChange", "")
    refuse_if(change not in _STATES, f"{change} is not a state that can be set here; use one of {', '.join(_STATES)}")
    key, kinds = _STATES[change]
    kind, value = SetObjectStates.get("objectType"), bool(SetObjectStates.get(key, False))
    room = session.room
    for entity in tuple(room.entities.values()):
        if entity.type not in kinds or kind not in (None, "", entity.type):
            continue
        if change == "toggleable":
            ajar = entity.type == "Microwave" and is_open(room, entity)
            if is_on(room, entity) != value and not (ajar and value):
                switch(room, entity, value)
        elif change == "openable":
            _open(room, entity, value)
        else:
            mark(room, entity, "dirty" if change == "dirtyable" else "water", value)


def _open(room: Room, entity: Entity, value: bool) -> None:
    thing = room.thing(entity)
    if is_open(room, entity) == value:
        return
    if thing is not None and thing.openable:
        room.world.open(thing.id) if value else room.world.close(thing.id)
    else:
        mark(room, entity, "open", value)
