"""Houses for ``CreateHouse``: one key with the scene as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from envs.alfred.scene import Item, ObjectPose, Position, Scene, Start
from keep_agent.errors import DataError

KEY = "keep_agent"
EMPTY = "Procedural"  # the scene in which houses are built


def to_house(scene: Scene) -> dict[str, Any]:
    """Return the argument of ``controller.reset(scene=...)``; only the stand-in can build it."""
    plain = asdict(scene)
    for item in plain["items"]:
        item["states"] = sorted(item["states"])
    return {KEY: plain}


def from_house(house: dict[str, Any]) -> Scene:
    """Return the scene of a house. Raises DataError for a house that `to_house` has not made."""
    try:
        return _scene(house[KEY])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"unreadable house ({type(error).__name__}: {error}); make it with to_house") from error


def _scene(plain: dict[str, Any]) -> Scene:
    x, z = plain["agent"]
    return Scene(
        plain["id"],
        plain["room"],
        tuple(_item(item) for item in plain["items"]),
        (float(x), float(z)),
        tuple((float(x), float(z)) for x, z in plain["reachable"]),
        None if plain["start"] is None else _start(plain["start"]),
    )


def _item(plain: dict[str, Any]) -> Item:
    return Item(**{**plain, "position": _position(plain["position"]), "states": frozenset(plain["states"])})


def _start(plain: dict[str, Any]) -> Start:
    return Start(
        tuple(
            ObjectPose(pose["name"], _position(pose["position"]), _position(pose["rotation"]))
            for pose in plain["objects"]
        ),
        tuple((str(kind), bool(on)) for kind, on in plain["toggles"]),
        plain["dirty_and_empty"],
        _position(plain["agent"]),
        plain["rotation"],
        plain["horizon"],
    )


def _position(numbers: list[float]) -> Position:
    x, y, z = numbers
    return float(x), float(y), float(z)
