"""All that the build remembers between two actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from envs.alfred.scene import Position
from envs.alfred.thor_stub.actions.refusals import unseen
from envs.alfred.thor_stub.geometry import Sight
from envs.alfred.thor_stub.stage import Entity, Stage


class Scenes(Protocol):
    """Where rooms come from."""

    def names(self) -> list[str]: ...

    def make(self, name: str) -> Stage:
        """Raises Refused for a name that is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``Initialize`` settles; metres and degrees."""

    grid: float = 0.25
    snap: bool = True
    sight: Sight = field(default_factory=Sight)
    turn: float = 90.0
    images: bool = True
    patches: bool = True  # answers that change nothing leave all else out (fastActionEmit)
    near: float = 0.1
    far: float = 20.0


@dataclass(frozen=True, slots=True)
class Camera:
    """A further camera; ``extent`` is half the height of what an orthographic one shows, in metres."""

    position: Position
    rotation: Position
    angle: float = 90.0
    extent: float | None = None


@dataclass(slots=True)
class Session:
    """A room, the settings and the cameras."""

    scenes: Scenes
    stage: Stage
    width: int = 300
    height: int = 300
    settings: Settings = field(default_factory=Settings)
    cameras: list[Camera] = field(default_factory=list)
    map_view: bool = False

    def enter(self, stage: Stage) -> None:
        """Another room, with all settings as at first."""
        self.stage = stage
        self.settings = Settings()
        self.cameras = []
        self.map_view = False

    def target(self, object_id: str, force: bool) -> Entity:
        """Return the object with this id. Raises Refused where there is none, or, without force, if the agent sees none."""
        entity = self.stage.find(object_id)
        if not force and not self.stage.sees(entity, self.settings.sight):
            raise unseen()
        return entity
