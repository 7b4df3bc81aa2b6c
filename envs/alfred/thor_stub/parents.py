"""What an object lies in or on, as far as its position tells."""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfred.data.mining import Fixture, Room
from envs.alfred.data.receptacles import Inference, nested
from envs.alfred.scene import Item, Position


class Parents:
    """Guesses in one room; made from what demonstrations reveal of it, or from its fixtures alone."""

    def __init__(self, fixtures: Iterable[Item], room: Room | None = None) -> None:
        """``room`` names fixtures by the ids that items have as their ``source``."""
        found = [item for item in fixtures if item.source or room is None]
        if room is None:
            room = Room(tuple(Fixture(item.id, item.type, item.position) for item in found))
            self._ids = {item.id: item.id for item in found}
        else:
            self._ids = {item.source: item.id for item in found}
        self._inference = Inference(room)

    def guess(self, kind: str, position: Position, others: Iterable[Item]) -> str | None:
        """Return the item that holds it: a bowl or mug right below, else a fixture; None is the floor."""
        inside = (other.id for other in others if nested(kind, position, other.type, other.position))
        return next(inside, None) or self._fixture(kind, position)

    def _fixture(self, kind: str, position: Position) -> str | None:
        guesses = self._inference.guesses(kind, position)
        return self._ids.get(guesses[0][1]) if guesses else None
