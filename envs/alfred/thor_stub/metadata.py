"""Metadata in the replies of the stand-in for AI2-THOR: the state of all objects, of the agent and of the cameras."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from envs.alfred.scene import Position, xyz
from envs.alfred.thor_stub.actions.handling import LIQUIDS, is_on, is_open
from envs.alfred.thor_stub.actions.scenery import CEILING, map_camera
from envs.alfred.thor_stub.geometry import box
from envs.alfred.thor_stub.room import Entity, Room
from envs.alfred.thor_stub.session import Camera, Session
from envs.alfred.thor_stub.traits import PICKUPABLE, size_of, template

Record = dict[str, Any]


class MetadataWriter:
    """Writer of metadata. Until the room changes, it caches the parts that do not depend on the agent's pose."""

    def __init__(self) -> None:
        self._room: Room | None = None
        self._version = -1
        self._fixed: list[tuple[Entity, Record]] = []
        self._state: Hashable = None
        self._agent: Record = {}

    def agent(self, session: Session) -> Record:
        """Return the agent's metadata with all objects and cameras, but without the result of the last action."""
        if session.state != self._state:
            self._state, self._agent = session.state, self._write(session)
        return self._agent

    def _write(self, session: Session) -> Record:
        room, body = session.room, session.room.body
        view = map_camera(room) if session.map_view else None
        turn = xyz((0.0, body.rotation, 0.0))
        (x0, z0), (x1, z1) = room.bounds
        bounds = box(((x0 + x1) / 2, CEILING / 2, (z0 + z1) / 2), (x1 - x0 + 1.0, CEILING, z1 - z0 + 1.0))
        in_hand = [room.of_thing[room.world.holding]] if room.world.holding else []
        return {
            "objects": self._objects(session),
            "agent": {
                "name": "agent", "position": xyz(body.position), "rotation": turn, "cameraHorizon": body.horizon,
                "isStanding": body.standing, "inHighFrictionArea": False,
            },
            "heldObjectPose": {
                "position": xyz(room.hand), "rotation": turn,
                "localPosition": xyz((0.0, 0.0, 0.0)), "localRotation": xyz((0.0, 0.0, 0.0)),
            },
            "inventoryObjects": [{"objectId": entity.id, "objectType": entity.type} for entity in in_hand],
            "sceneName": room.name, "sceneBounds": bounds, "screenWidth": session.width,
            "screenHeight": session.height, "fov": session.settings.sight.angle,
            "cameraPosition": xyz(view.position if view else body.eye), "cameraOrthSize": view.extent if view else -1.0,
            "thirdPartyCameras": _cameras(session.cameras), "collided": False, "collidedObjects": [],
            "isSceneAtRest": True, "currentTime": 0.0, "colors": None, "colorBounds": None, "flatSurfacesOnGrid": [],
            "depthFormat": "Meters", "agentId": 0,
        }  # fmt: skip

    def _objects(self, session: Session) -> list[Record]:
        """Return the records of all objects. They share parts with earlier records, so do not change them."""
        room, sight = session.room, session.settings.sight
        if room is not self._room or room.version != self._version:
            inside = _inside(room)
            self._fixed = [(entity, _fixed(room, entity, inside)) for entity in room.entities.values()]
            self._room, self._version = room, room.version
        return [self._record(room, entity, fixed, room.sees(entity, sight)) for entity, fixed in self._fixed]

    def _record(self, room: Room, entity: Entity, fixed: Record, visible: bool) -> Record:
        x, y, z = room.body.position
        position = fixed["position"]
        if fixed["isPickedUp"] or room.carries(entity):
            fixed = fixed | _geometry(room.hand, entity.type) | {"rotation": xyz((0.0, room.body.rotation, 0.0))}
            position = fixed["position"]
        distance = ((position["x"] - x) ** 2 + (position["y"] - y) ** 2 + (position["z"] - z) ** 2) ** 0.5
        return {**fixed, "visible": visible, "isInteractable": visible, "distance": distance}


def _cameras(cameras: list[Camera]) -> list[Record]:
    """Return the additional cameras in the metadata's format."""
    return [
        {
            "thirdPartyCameraId": number, "position": xyz(camera.position), "rotation": xyz(camera.rotation),
            "fieldOfView": camera.angle, "orthographic": camera.extent is not None, "orthographicSize": camera.extent,
        }
        for number, camera in enumerate(cameras)
    ]  # fmt: skip


def _inside(room: Room) -> dict[str, list[str]]:
    """Return, by receptacle id, the ids of the objects in or on it, nested objects included."""
    contents: dict[str, list[str]] = {}
    for entity in room.of_thing.values():
        for outer in room.receptacles_around(entity):
            contents.setdefault(outer.id, []).append(entity.id)
    return contents


def _fixed(room: Room, entity: Entity, inside: dict[str, list[str]]) -> Record:
    thing, marks = room.thing(entity), room.marks[entity.key]
    shared = template(entity.type)
    is_ajar, liquid = is_open(room, entity), next((word for word in LIQUIDS if word in marks), None)
    specific: Record = {
        "name": entity.name, "objectId": entity.id, "rotation": xyz(entity.rotation),
        "isToggled": is_on(room, entity), "isOpen": is_ajar, "openness": float(is_ajar), "isDirty": "dirty" in marks,
        "isFilledWithLiquid": liquid is not None, "fillLiquid": liquid,
        "isCooked": shared["cookable"] and "cooked" in marks, "isSliced": "sliced" in marks,
        "temperature": "Hot" if "hot" in marks else "Cold" if "cold" in marks else "RoomTemp",
        "parentReceptacles": [outer.id for outer in room.receptacles_around(entity)] or None,
        "controlledObjects": [entity.controls] if entity.controls else ([] if shared["toggleable"] else None),
    }  # fmt: skip
    if shared["receptacle"]:
        specific["receptacleObjectIds"] = inside.get(entity.id, [])
    if thing is not None:
        specific["isPickedUp"] = thing.id == room.world.holding
    position = entity.place if thing is None else thing.position
    return {**shared, **specific, **_geometry(position, entity.type)}


def _geometry(position: Position, kind: str) -> Record:
    outline = box(position, size_of(kind))
    oriented = {"cornerPoints": outline["cornerPoints"]} if kind in PICKUPABLE else None
    return {"position": xyz(position), "axisAlignedBoundingBox": outline, "objectOrientedBoundingBox": oriented}
