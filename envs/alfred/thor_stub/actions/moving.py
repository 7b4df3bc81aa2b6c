"""Actions of the stand-in for AI2-THOR that change the agent's pose, or list possible poses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from math import cos, dist, isclose, radians, sin
from typing import Any

from envs.alfred.scene import xyz
from envs.alfred.thor_stub.actions.refusals import Refusal, exception, missing_arguments, out_of_range
from envs.alfred.thor_stub.geometry import AgentPose, Point, poses_seeing
from envs.alfred.thor_stub.session import Session
from envs.alfred.thor_stub.traits import size_of

MIN_HORIZON, MAX_HORIZON = -30.0, 60.0  # degrees; down is positive
HORIZONS = (MIN_HORIZON, 0.0, 30.0, MAX_HORIZON)
MAX_HEIGHT_CHANGE = 0.05  # metres; the largest allowed difference between the requested height and the agent's
EPSILON = 0.02  # metres within which a point counts as a standing point
UNLIMITED = 2**31 - 1
XYZ = dict[str, float]


def teleport(
    session: Session, *, position: XYZ | None = None, rotation: XYZ | None = None, horizon: float | None = None,
    standing: bool | None = None, forceAction: bool = False, x: float | None = None, y: float | None = None,
    z: float | None = None,
) -> None:  # fmt: skip
    """Change the pose; omitted values are kept."""
    body = session.room.body
    place = xyz(body.position) | (position or {})
    place |= {key: value for key, value in {"x": x, "y": y, "z": z}.items() if value is not None}
    angles = xyz((0.0, body.rotation, 0.0)) | (rotation or {})
    horizon = body.horizon if horizon is None else horizon
    standing = body.standing if standing is None else standing
    new = AgentPose(place["x"], place["z"], angles["y"] % 360.0, horizon, standing, body.y)
    if not forceAction:
        _check(session, new, angles, place)
    session.room.place_agent(new)


def teleport_full(
    session: Session, *, rotation: XYZ, horizon: float, standing: bool, position: XYZ | None = None,
    forceAction: bool = False, x: float | None = None, y: float | None = None, z: float | None = None,
) -> None:  # fmt: skip
    """Set the whole pose; the position is given as ``position``, or as ``x``, ``y`` and ``z``."""
    if position is None and None in (x, y, z):
        raise missing_arguments("TeleportFull", "position")
    pose: dict[str, Any] = {"position": position, "rotation": rotation, "horizon": horizon, "standing": standing}
    teleport(session, **pose, forceAction=forceAction, x=x, y=y, z=z)


def _check(session: Session, body: AgentPose, angles: XYZ, place: XYZ) -> None:
    if abs(angles["x"]) >= 0.01 or abs(angles["z"]) >= 0.01:
        raise out_of_range(
            "No agents currently can change in pitch or roll. So, you must set rotation(x=0, y=yaw, z=0). "
            f"You gave ({angles['x']}, {angles['y']}, {angles['z']})"
        )
    check_horizons([body.horizon])
    target = (place["x"], place["y"], place["z"])
    (x0, z0), (x1, z1) = session.room.bounds
    if not (x0 - 1.0 <= body.x <= x1 + 1.0 and z0 - 1.0 <= body.z <= z1 + 1.0):
        raise out_of_range(f"Teleport position {target} out of scene bounds! Ignore this by setting forceAction=true")
    grid = session.settings.grid
    if session.settings.snap and not all(isclose(v / grid, round(v / grid), abs_tol=1e-4) for v in (body.x, body.z)):
        raise out_of_range(f"Teleport position {target} is not on the grid of size {grid}")
    if not _is_free(session, (body.x, body.z)):
        raise exception("InvalidOperationException", "Collided with: furniture while attempting to teleport")
    if abs(place["y"] - body.y) > MAX_HEIGHT_CHANGE:
        raise exception(
            "InvalidOperationException",
            "After teleporting and adjusting agent position to floor, there was too large a change"
            f"({abs(place['y'] - body.y)} > {MAX_HEIGHT_CHANGE}) in the y component."
            " Consider using `forceAction=true` if you'd like to teleport anyway",
        )


def check_horizons(horizons: Iterable[float]) -> None:
    for horizon in horizons:
        if not MIN_HORIZON <= horizon <= MAX_HORIZON:
            raise out_of_range(f"Each horizon must be in [{MIN_HORIZON:g}:{MAX_HORIZON:g}]. You gave {horizon:g}")


def _is_free(session: Session, point: Point) -> bool:
    body = session.room.body
    return dist(point, (body.x, body.z)) < EPSILON or any(dist(point, free) < EPSILON for free in session.room.points)


def reachable(
    session: Session,
    *,
    maxStepCount: int | None = None,
    directionsRelativeAgent: bool = False,
    gridSize: float | None = None,
) -> list[XYZ]:
    """Return all standing points: first the agent's own, then the others by distance from the agent."""
    body = session.room.body
    start = body.x, body.z
    rest = sorted((point for point in session.room.points if point != start), key=lambda point: dist(point, start))
    return [xyz((x, body.y, z)) for x, z in (start, *rest)]


def interactable(
    session: Session, *, objectId: str, positions: list[XYZ] | None = None, rotations: list[float] | None = None,
    horizons: list[float] | None = None, standings: list[bool] | None = None, maxDistance: float | None = None,
    maxPoses: int = UNLIMITED,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return at most ``maxPoses`` poses from which the agent sees the object. An omitted list allows all values."""
    room, sight = session.room, session.settings.sight
    if maxPoses <= 0:
        raise out_of_range("maxPoses must be > 0")
    if maxDistance is not None and maxDistance < 0:
        raise out_of_range("maxDistance must be >= 0 meters from the object")
    entity = room.find(objectId)
    if horizons is not None:
        check_horizons(horizons)
    step = session.settings.turn
    offset = round(room.body.rotation % step)
    turns = [(offset + step * count) % 360.0 for count in range(round(360.0 / step))]
    freedom = (
        [(at["x"], at["y"], at["z"]) for at in (reachable(session) if positions is None else positions)],
        turns if rotations is None else rotations,
        HORIZONS if horizons is None else horizons,
        (False, True) if standings is None else standings,
    )
    if not all(freedom):
        raise exception("ArgumentException", "Every degree of freedom must have at least 1 valid value")
    if room.hidden(entity) or room.carries(entity):
        return []
    if maxDistance is not None:
        sight = replace(sight, reach=maxDistance)
    seeing = poses_seeing(sight, room.position(entity), size_of(entity.type)[0], *freedom)
    return [
        {**xyz(at), "rotation": float(turn), "standing": standing, "horizon": float(horizon)}
        for at, turn, horizon, standing in islice(seeing, maxPoses)
    ]


def rotate_right(session: Session, *, degrees: float | None = None, forceAction: bool = False) -> None:
    body = session.room.body
    rotation = body.rotation + (session.settings.turn if degrees is None else degrees)
    session.room.place_agent(replace(body, rotation=rotation % 360.0))


def rotate_left(session: Session, *, degrees: float | None = None, forceAction: bool = False) -> None:
    rotate_right(session, degrees=-(session.settings.turn if degrees is None else degrees))


def look_down(session: Session, *, degrees: float = 30.0, forceAction: bool = False) -> None:
    body = session.room.body
    horizon = body.horizon + degrees
    if not MIN_HORIZON - 1e-6 <= horizon <= MAX_HORIZON + 1e-6:
        side, limit = ("down", MAX_HORIZON) if degrees > 0 else ("up", -MIN_HORIZON)
        where = "below" if degrees > 0 else "above"
        message = f"can't look {side} beyond {limit:g} degrees {where} the forward horizon"
        raise Refusal(message, "LookDownCantExceedMin")
    session.room.place_agent(replace(body, horizon=horizon))


def look_up(session: Session, *, degrees: float = 30.0, forceAction: bool = False) -> None:
    look_down(session, degrees=-degrees)


def _walk(bearing: float) -> Callable[..., None]:
    """Return the action that walks one step, ``bearing`` degrees to the right of the agent's direction."""

    def move(session: Session, *, moveMagnitude: float | None = None, forceAction: bool = False) -> None:
        body, grid = session.room.body, session.settings.grid
        length, turn = moveMagnitude or grid, radians(body.rotation + bearing)
        x, z = body.x + length * sin(turn), body.z + length * cos(turn)
        if session.settings.snap:
            x, z = round(x / grid) * grid, round(z / grid) * grid
        if not _is_free(session, (x, z)):
            way = f"({x - body.x:.4f}, 0.0000, {z - body.z:.4f})"
            raise Refusal(f"furniture is blocking Agent 0 from moving by {way}.")
        session.room.place_agent(replace(body, x=x, z=z))

    return move


move_ahead, move_right, move_back, move_left = map(_walk, (0.0, 90.0, 180.0, 270.0))


def crouch(session: Session) -> None:
    session.room.place_agent(replace(session.room.body, standing=False))


def stand(session: Session) -> None:
    session.room.place_agent(replace(session.room.body, standing=True))


def pass_(session: Session) -> None:
    """Return without any effect: the action of Pass and Done."""
