"""Houses for the action ``CreateHouse`` of the stand-in for AI2-THOR: dicts with the scene as JSON under one key."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from envs.alfred.scene import Scene
from keep_agent.errors import DataError
from keep_agent.files import reason

KEY = "keep_agent"
EMPTY_SCENE = "Procedural"  # AI2-THOR's empty scene, in which houses are built
_SCENES = TypeAdapter(Scene)


def to_house(scene: Scene) -> dict[str, Any]:
    """Return a scene as the argument of ``controller.reset(scene=...)``; only the stand-in understands it."""
    plain = asdict(scene)
    for item in plain["items"]:
        item["states"] = sorted(item["states"])
    return {KEY: plain}


def from_house(house: dict[str, Any]) -> Scene:
    """Return the scene of a house. Raises DataError for a house that `to_house` has not made."""
    try:
        return _SCENES.validate_python(house[KEY])
    except (KeyError, ValueError) as error:
        raise DataError(f"unreadable house ({reason(error)}); make it with to_house") from error
