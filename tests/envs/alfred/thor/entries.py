"""Metadata of objects as AI2-THOR 5 gives it, limited to the keys that are read."""

from __future__ import annotations

from typing import Any
from zlib import crc32


def entry(object_id: str, kind: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return an object of the type and at the position in its id."""
    first, x, y, z = object_id.split("|")[:4]
    base = {
        "objectId": object_id,
        "objectType": kind or first,
        "name": f"{kind or first}_{crc32(object_id.encode()):08x}",
        "position": {"x": float(x), "y": float(y), "z": float(z)},
        "rotation": {"x": 0.0, "y": 0.0, "z": 0.0},
        "visible": False, "pickupable": False, "isPickedUp": False, "moveable": False, "openable": False,
        "isOpen": False, "toggleable": False, "isToggled": False, "isSliced": False, "dirtyable": False,
        "isDirty": False, "canFillWithLiquid": False, "isFilledWithLiquid": False, "parentReceptacles": None,
        "receptacleObjectIds": None,
    }  # fmt: skip
    return base | changes


def thing(object_id: str, *parents: str, **changes: Any) -> dict[str, Any]:
    """Return an object that can be picked up, in or on ``parents``."""
    return entry(object_id, pickupable=True, parentReceptacles=list(parents) or None, **changes)
