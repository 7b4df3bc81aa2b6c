"""Session of the stand-in for AI2-THOR: the state that remains between two actions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from envs.alfred.scene import Position
from envs.alfred.thor_stub.actions.refusals import exception
from envs.alfred.thor_stub.geometry import Sight
from envs.alfred.thor_stub.room import Entity, Room
from envs.alfred.thor_stub.rooms import Rooms


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that the action ``Initialize`` changes: lengths in metres, angles in degrees."""

    grid: float = 0.25
    snap: bool = True
    sight: Sight = field(default_factory=Sight)
    turn: float = 90.0
    images: bool = True
    patches: bool = True  # a reply to a query contains only the result (fastActionEmit)
    near: float = 0.1  # distances of the camera's clipping planes
    far: float = 20.0


@dataclass(frozen=True, slots=True)
class Camera:
    """An additional camera; for an orthographic one, ``extent`` is half the height of its view in metres."""

    position: Position
    rotation: Position
    angle: float = 90.0
    extent: float | None = None


@dataclass(slots=True)
class Session:
    """The scenes to choose from, the current room, the screen in pixels, the settings and the cameras."""

    scenes: Rooms
    room: Room
    width: int = 300
    height: int = 300
    settings: Settings = field(default_factory=Settings)
    cameras: list[Camera] = field(default_factory=list)
    map_view: bool = False

    @property
    def state(self) -> Hashable:
        """Value that changes whenever the images or the metadata change. Different `Room` objects are never equal."""
        view = self.settings, self.width, self.height, self.map_view, tuple(self.cameras)
        return self.room, self.room.version, self.room.body, view

    def enter(self, room: Room) -> None:
        """Change to another room with default settings."""
        self.room, self.settings, self.cameras, self.map_view = room, Settings(), [], False

    def target(self, object_id: str, force: bool) -> Entity:
        """Return the object with an id. Raises Refusal if it is missing or, without force, invisible."""
        entity = self.room.find(object_id)
        if not force and not self.room.sees(entity, self.settings.sight):
            raise exception("NullReferenceException", "Target object not found within the specified visibility")
        return entity
