"""What a change of segments costs: blocks of the last prompt that the next one cannot use."""

from __future__ import annotations

from collections.abc import Sequence

from memory.segments.store import SegmentStore
from memory.stages import Unit


class Invalidation:
    """Compares the named units of one prompt with those of the last. Units without a name have no block to lose."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self._previous: dict[str, Unit] = {}
        self._cursor = 0
        self._present = self._previous, self._cursor

    def count(self, names: Sequence[str], units: Sequence[Unit]) -> int:
        """Tokens of the last prompt's blocks that a change of a segment, a shift, a flip of a group or the end of
        a task, whose log goes on with nothing, made useless.

        A block that is missing only because its segments were not chosen this time is still good.
        """
        changed = set(self._store.changed(self._cursor))
        chosen = {span.segment for unit in units for span in unit.spans}
        now = {name: unit for name, unit in zip(names, units, strict=True) if name}
        lost = 0
        for name, unit in self._previous.items():
            segments = {span.segment for span in unit.spans}
            if name not in now and (segments & changed or segments <= chosen):
                lost += len(unit.token_ids)
        self._present = now, self._store.changes
        return lost

    def settle(self) -> None:
        """The units counted last are those of the last prompt from now on; what was only asked aside never is."""
        self._previous, self._cursor = self._present
