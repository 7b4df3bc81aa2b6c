"""History of values by id: stored as changes, readable at any step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass
class History(Generic[Value]):
    """Changes (step, value) by id; None means "removed"."""

    changes: dict[str, list[tuple[int, Value | None]]] = field(default_factory=dict)

    def add(self, step: int, id: str, value: Value | None) -> None:
        """Add a change. Steps must be in order; of several values in one step the last value counts."""
        self.changes.setdefault(id, []).append((step, value))

    def at(self, step: int) -> Iterator[tuple[str, Value]]:
        """Yield ids and values at a step, in the order of the ids' first changes."""
        for id, changes in self.changes.items():
            count = _until(changes, step)
            value = changes[count - 1][1] if count else None
            if value is not None:
                yield id, value

    def versions(self, step: int, id: str) -> list[tuple[int, Value]]:
        """Return the (step, value) changes of an id up to a step, oldest first, without removals."""
        changes = self.changes.get(id, [])
        return [(since, value) for since, value in changes[: _until(changes, step)] if value is not None]


def _until(changes: list[tuple[int, Value | None]], step: int) -> int:
    return bisect_right(changes, step, key=lambda change: change[0])
