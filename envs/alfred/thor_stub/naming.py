"""Ids and names as AI2-THOR 5.0 forms them. They are never those of 2.1, which ALFRED's files name."""

from __future__ import annotations

import hashlib
from collections.abc import Container

from envs.alfred.data.mining import official_id
from envs.alfred.scene import Position

_INSIDE = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}  # named after what they are part of
_SHIFT = 0.01  # metres; furniture of 5.0 does not stand quite where it stood


def object_id(kind: str, position: Position) -> str:
    """ "Mug|+00.13|+00.91|-01.20", "Sink|+00.13|+00.91|-01.20|SinkBasin"; ``kind`` is a name of 5.0."""
    x, y, z = position
    outer = _INSIDE.get(kind)
    whole = official_id(outer or kind, (x + _SHIFT, y, z))
    return f"{whole}|{kind}" if outer else whole


def free_id(kind: str, position: Position, taken: Container[str]) -> str:
    """Return an id that nothing else has: the position it names is a little higher where needed."""
    x, y, z = position
    found = object_id(kind, position)
    while found in taken:
        y += _SHIFT
        found = object_id(kind, (x, y, z))
    return found


def game_name(scene: str, kind: str, object_id: str) -> str:
    """Return the name of the game object, the same in every process: "Mug_291e6e8a"."""
    return f"{kind}_{hashlib.sha256(f'{scene} {object_id}'.encode()).hexdigest()[:8]}"


def whole_of(basin_id: str) -> tuple[str, str]:
    """(type, id) of the sink or bathtub a basin is part of: "Sink|..|SinkBasin" -> ("Sink", "Sink|..")."""
    whole = basin_id.rpartition("|")[0]
    return whole.partition("|")[0], whole
