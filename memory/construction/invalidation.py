"""Invalidation count: tokens of the last prompt's blocks that the next prompt cannot use."""

from __future__ import annotations

from collections.abc import Sequence

from memory.prompt.units import Unit
from memory.segments.store import SegmentStore


class Invalidation:
    """Comparison of one prompt's named units with those of the last. Units without a name have no block."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self._previous: dict[str, Unit] = {}
        self._cursor = 0
        self._present = self._previous, self._cursor

    def count(self, names: Sequence[str], units: Sequence[Unit]) -> int:
        """Tokens of the last prompt's blocks that became useless.

        Reasons are a changed segment, shifted tokens, a group that changed its kind, and the end of a task, whose log
        ends there. A block that is absent only because its segments were not chosen this time is still good.
        """
        changed = set(self._store.changed(self._cursor))
        chosen = {span.segment for unit in units for span in unit.spans}
        present = {name: unit for name, unit in zip(names, units, strict=True) if name}
        tokens = 0
        for name, unit in self._previous.items():
            segments = {span.segment for span in unit.spans}
            if name not in present and (segments & changed or segments <= chosen):
                tokens += len(unit.token_ids)
        self._present = present, self._store.changes
        return tokens

    def settle(self) -> None:
        """Make the units counted last those of the last prompt; a prompt that leaves no trace never settles."""
        self._previous, self._cursor = self._present
