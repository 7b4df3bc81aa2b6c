"""Record of the skills attempted in a task: in a deterministic world a skill without effect has none the next time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
CAPACITY = 1000  # situations that are remembered, and situations with futile skills


class AttemptedSkills:
    """Situations of one task and the skills that are futile in them.

    A *situation* is the known state of the world together with the agent's own state. A skill that changes neither is
    futile in that situation. A skill that leads back to an earlier situation is futile while the known state of the
    world stays the same.
    """

    def __init__(self) -> None:
        self._visited: dict[tuple[Hashable, Hashable], None] = {}  # least recent first, as in `_futile`
        self._futile: dict[Hashable, set[str]] = {}
        self._situation: tuple[Hashable, Hashable] | None = None
        self._skill: str | None = None

    def futile(self, world: Hashable, agent: Hashable) -> set[str]:
        """Return the futile skills of the situation that the last recorded skill led to."""
        previous, self._situation = self._situation, (world, agent)
        if previous is not None and self._skill is not None:
            if self._situation == previous:
                _touch(self._futile, previous, set()).add(self._skill)
            elif self._situation in self._visited:
                _touch(self._futile, previous[0], set()).add(self._skill)
        self._skill = None
        _touch(self._visited, self._situation, None)
        keys = [key for key in (world, self._situation) if key in self._futile]
        return set().union(*(_touch(self._futile, key, set()) for key in keys))

    def record(self, skill: str) -> None:
        """Note an executed skill; its effect shows in the next situation."""
        self._skill = skill

    def copy(self) -> AttemptedSkills:
        clone = AttemptedSkills()
        clone._visited, clone._futile = dict(self._visited), {key: set(skills) for key, skills in self._futile.items()}
        clone._situation, clone._skill = self._situation, self._skill
        return clone


def _touch(table: dict[Key, Value], key: Key, default: Value) -> Value:
    """Return the value of ``key``, which becomes the most recent one; the least recent is evicted over `CAPACITY`."""
    table[key] = table.pop(key, default)
    if len(table) > CAPACITY:
        del table[next(iter(table))]
    return table[key]
