"""Actions of the stand-in for AI2-THOR on the whole room: scenes, settings, screens and cameras."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from envs.alfred.scene import Position, xyz
from envs.alfred.thor_stub.actions.refusals import Refusal, refuse_if
from envs.alfred.thor_stub.geometry import Sight, vector
from envs.alfred.thor_stub.house import EMPTY_SCENE, KEY, from_house
from envs.alfred.thor_stub.room import Room
from envs.alfred.thor_stub.session import Camera, Session, Settings
from keep_agent.errors import DataError

CEILING = 2.5  # metres
MAX_PIXELS = 4096  # maximum width and height of the screen
XYZ = dict[str, float]


def reset(session: Session, *, sceneName: str, **ignored: object) -> None:
    session.enter(session.scenes.make(sceneName))


def initialize(
    session: Session, *, gridSize: float = 0.25, snapToGrid: bool = True, visibilityDistance: float = 1.5,
    fieldOfView: float = 90.0, rotateStepDegrees: float = 90.0, renderImage: bool = True, fastActionEmit: bool = True,
    agentMode: str = "default", agentCount: int = 1, cameraNearPlane: float = 0.1, cameraFarPlane: float = 20.0,
    **ignored: object,
) -> dict[str, float]:  # fmt: skip
    """Apply settings. Zeros and nulls mean the default; unknown names are ignored, as in AI2-THOR."""
    refuse_if(not 0 <= (gridSize or 0) <= 5, "grid size must be in the range (0,5]")
    refuse_if(not 0 <= (fieldOfView or 0) < 180, "fov must be set to (0, 180) noninclusive.")
    if agentMode != "default" or agentCount != 1:
        raise Refusal(f"this stand-in has one agent of mode default, not {agentCount} of mode {agentMode}")
    if snapToGrid and rotateStepDegrees not in (90, 180, 270, 360):
        raise Refusal("Invalid values 'rotateStepDegrees' with snapToGrid=True, use one of 90, 180, 270 or 360")
    session.settings = Settings(
        gridSize or 0.25,
        snapToGrid,
        Sight(visibilityDistance or 1.5, fieldOfView or 90.0),
        rotateStepDegrees,
        renderImage,
        fastActionEmit,
        cameraNearPlane or 0.1,
        cameraFarPlane or 20.0,
    )
    return {"cameraNearPlane": session.settings.near, "cameraFarPlane": session.settings.far}


def create_house(session: Session, *, house: dict[str, Any]) -> None:
    """Furnish the empty room with a house from `to_house`; the settings are kept."""
    refuse_if(session.room.name != EMPTY_SCENE, f"CreateHouse works in the scene {EMPTY_SCENE} only")
    if not isinstance(house, dict) or KEY not in house:
        raise Refusal(f"this stand-in builds houses that envs.alfred.thor_stub.house has made, with the key {KEY!r}")
    try:
        session.room = Room(from_house(house), EMPTY_SCENE)
    except DataError as error:
        raise Refusal(str(error)) from error


def scenes_in_build(session: Session) -> list[str]:
    return session.scenes.names()


def change_resolution(session: Session, *, x: int, y: int) -> None:
    refuse_if(not 0 < min(x, y) <= max(x, y) <= MAX_PIXELS, f"{x} x {y} pixels: use 1 to {MAX_PIXELS} per side")
    session.width, session.height = int(x), int(y)


def change_quality(session: Session, *, quality: str) -> None:
    """Accept a quality, which has no effect here."""


def map_view_properties(session: Session) -> dict[str, Any]:
    """Return a camera above the room, as arguments of `AddThirdPartyCamera`."""
    camera = map_camera(session.room)
    return {
        "position": xyz(camera.position),
        "rotation": xyz(camera.rotation),
        "orthographicSize": camera.extent,
        "orthographic": True,
    }


def map_camera(room: Room) -> Camera:
    (x0, z0), (x1, z1) = room.bounds
    center: Position = ((x0 + x1) / 2, CEILING, (z0 + z1) / 2)
    return Camera(center, (90.0, 0.0, 0.0), extent=max(x1 - x0, z1 - z0) / 2 + 0.5)


def toggle_map_view(session: Session) -> None:
    session.map_view = not session.map_view


def add_camera(
    session: Session, *, position: XYZ, rotation: XYZ, fieldOfView: float = 90.0, skyboxColor: str | None = None,
    orthographic: bool = False, orthographicSize: float | None = None, nearClippingPlane: float | None = None,
    farClippingPlane: float | None = None, antiAliasing: str | None = None,
) -> None:  # fmt: skip
    refuse_if(not 0 < fieldOfView < 180, "fov must be set to (0, 180) noninclusive.")
    if orthographicSize is not None and not orthographic:
        raise Refusal("orthographicSize must be null when orthographic is false")
    extent = (orthographicSize or 5.0) if orthographic else None
    session.cameras.append(Camera(vector(position), vector(rotation), fieldOfView, extent))


def update_camera(
    session: Session, *, thirdPartyCameraId: int = 0, position: XYZ | None = None, rotation: XYZ | None = None,
    fieldOfView: float | None = None, orthographic: bool | None = None, orthographicSize: float | None = None,
    skyboxColor: str | None = None, nearClippingPlane: float | None = None, farClippingPlane: float | None = None,
) -> None:  # fmt: skip
    if not 0 <= thirdPartyCameraId < len(session.cameras):
        raise Refusal(f"there is no third party camera with thirdPartyCameraId={thirdPartyCameraId}")
    old = session.cameras[thirdPartyCameraId]
    is_flat = orthographic if orthographic is not None else old.extent is not None
    session.cameras[thirdPartyCameraId] = replace(
        old,
        position=vector(xyz(old.position) | (position or {})),
        rotation=vector(xyz(old.rotation) | (rotation or {})),
        angle=fieldOfView or old.angle,
        extent=(orthographicSize or old.extent or 5.0) if is_flat else None,
    )
