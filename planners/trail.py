"""What a planner tried in a task: in a world without chance, what led nowhere leads nowhere again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable


class Trail:
    """Where the agent has been in a task, and which skills were in vain.

    A *situation* is what is known of the world, and the agent's own state in it. A skill that changed neither is in
    vain in that situation; one that led back to an earlier situation, as long as the world is known to be as it was.
    """

    def __init__(self) -> None:
        self._been: set[tuple[Hashable, Hashable]] = set()
        self._vain: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._here: tuple[Hashable, Hashable] | None = None
        self._took: str | None = None

    def arrive(self, world: Hashable, agent: Hashable) -> set[str]:
        """What is in vain in this situation, which the last skill led to."""
        before, self._here = self._here, (world, agent)
        if before is not None and self._took is not None:
            if self._here == before:
                self._vain[before].add(self._took)
            elif self._here in self._been:
                self._vain[before[0]].add(self._took)
        self._took = None
        self._been.add(self._here)
        return self._vain[self._here] | self._vain[world]

    def take(self, skill: str) -> None:
        """It was tried; what came of it shows in the next situation."""
        self._took = skill
