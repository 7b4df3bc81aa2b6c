"""Trail of what a planner tried in a task: in a world without chance, what led nowhere leads nowhere again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
MOST = 1000  # situations that are remembered, and such with skills in vain


class Trail:
    """Where the agent has been in a task, and which skills were in vain.

    A *situation* is what is known of the world, and the agent's own state in it. A skill that changed neither is in
    vain in that situation; one that led back to an earlier situation, as long as the world is known to be as it was.
    """

    def __init__(self) -> None:
        self._been: dict[tuple[Hashable, Hashable], None] = {}  # the latest last, as in the next
        self._vain: dict[Hashable, set[str]] = {}
        self._here: tuple[Hashable, Hashable] | None = None
        self._took: str | None = None

    def arrive(self, world: Hashable, agent: Hashable) -> set[str]:
        """What is in vain in this situation, which the last skill led to."""
        before, self._here = self._here, (world, agent)
        if before is not None and self._took is not None:
            if self._here == before:
                _last(self._vain, before, set()).add(self._took)
            elif self._here in self._been:
                _last(self._vain, before[0], set()).add(self._took)
        self._took = None
        _last(self._been, self._here, None)
        found = [_last(self._vain, key, set()) for key in (world, self._here) if key in self._vain]
        return set().union(*found)

    def copy(self) -> Trail:
        """What is remembered now."""
        other = Trail()
        other._been, other._vain = dict(self._been), {key: set(skills) for key, skills in self._vain.items()}
        other._here, other._took = self._here, self._took
        return other

    def take(self, skill: str) -> None:
        """It was tried; what came of it shows in the next situation."""
        self._took = skill


def _last(kept: dict[Key, Value], key: Key, new: Value) -> Value:
    """The value of ``key``, ``new`` if it has none. It is the latest now, and the oldest goes if there are too many."""
    kept[key] = kept.pop(key, new)
    if len(kept) > MOST:
        del kept[next(iter(kept))]
    return kept[key]
