"""What something was at every step, kept as its changes: the state at any step is one look-up per id."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass
class Changes(Generic[Value]):
    """The values one id took, each from a step on."""

    since: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, step: int, value: Value) -> None:
        self.since.append(step)
        self.values.append(value)

    def until(self, step: int) -> int:
        """How many of them had been told by that step, its own included."""
        return bisect_right(self.since, step)


@dataclass
class History(Generic[Value]):
    """Changes by id; None stands for "removed"."""

    changes: dict[str, Changes[Value | None]] = field(default_factory=dict)

    def add(self, step: int, id: str, value: Value | None) -> None:
        """Steps come in order; of several values in one step the last counts."""
        self.changes.setdefault(id, Changes()).add(step, value)

    def at(self, step: int) -> Iterator[tuple[str, Value]]:
        """What is there at a step, in the order in which ids were first told."""
        for id, changes in self.changes.items():
            told = changes.until(step)
            value = changes.values[told - 1] if told else None
            if value is not None:
                yield id, value

    def versions(self, step: int, id: str) -> list[tuple[int, Value]]:
        """(step, value) of all that an id has been by a step, oldest first, without removals."""
        changes = self.changes.get(id)
        if changes is None:
            return []
        told = changes.until(step)
        pairs = zip(changes.since[:told], changes.values[:told], strict=True)
        return [(since, value) for since, value in pairs if value is not None]
