"""Receptacles of objects, inferred from their positions."""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfred.data.mining import Fixture, Room
from envs.alfred.data.receptacles import Inference, nested
from envs.alfred.scene import Item, Position


class Parents:
    """Inference of receptacles in one room, from its demonstrations or from its fixtures alone."""

    def __init__(self, fixtures: Iterable[Item], room: Room | None = None) -> None:
        """Take the fixtures; ``room`` names them by the ids that items have as their ``source``."""
        items = [item for item in fixtures if item.source or room is None]
        if room is None:
            room = Room(tuple(Fixture(item.id, item.type, item.position) for item in items))
            self._ids = {item.id: item.id for item in items}
        else:
            self._ids = {item.source: item.id for item in items}
        self._inference = Inference(room)

    def guess(self, kind: str, position: Position, containers: Iterable[Item]) -> str | None:
        """Return the id of the item that holds an object: a bowl or mug directly below, else a fixture; None is the
        floor.
        """
        inside = (item.id for item in containers if nested(kind, position, item.type, item.position))
        return next(inside, None) or self._fixture(kind, position)

    def _fixture(self, kind: str, position: Position) -> str | None:
        guesses = self._inference.guesses(kind, position)
        return self._ids.get(guesses[0][1]) if guesses else None
