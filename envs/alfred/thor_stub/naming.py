"""Ids and names as AI2-THOR 5.0 forms them; they differ from those of 2.1 in ALFRED's files."""

from __future__ import annotations

import hashlib
from collections.abc import Container

from envs.alfred.data.mining import official_id
from envs.alfred.scene import Position

_INSIDE = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}  # their ids begin with the type of the whole
_SHIFT = 0.01  # metres between a thing's positions in 2.1 and 5.0


def object_id(kind: str, position: Position) -> str:
    """Return an id: "Mug|+00.13|+00.91|-01.20", "Sink|+00.13|+00.91|-01.20|SinkBasin"; ``kind`` is a name of 5.0."""
    x, y, z = position
    outer = _INSIDE.get(kind)
    whole = official_id(outer or kind, (x + _SHIFT, y, z))
    return f"{whole}|{kind}" if outer else whole


def free_id(kind: str, position: Position, ids: Container[str]) -> str:
    """Return an unused id; the position in it is moved up until the id is free."""
    x, y, z = position
    candidate = object_id(kind, position)
    while candidate in ids:
        y += _SHIFT
        candidate = object_id(kind, (x, y, z))
    return candidate


def game_name(scene: str, kind: str, object_id: str) -> str:
    """Return the name of the game object, the same in every process: "Mug_291e6e8a"."""
    return f"{kind}_{hashlib.sha256(f'{scene} {object_id}'.encode()).hexdigest()[:8]}"


def whole_of(basin_id: str) -> tuple[str, str]:
    """Return (type, id) of the sink or bathtub of a basin: "Sink|..|SinkBasin" -> ("Sink", "Sink|..")."""
    whole = basin_id.rpartition("|")[0]
    return whole.partition("|")[0], whole
