"""Facts on their way from a robot, and from whoever else knows something, to the planner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from keep_agent.errors import DataError

if TYPE_CHECKING:
    from keep_agent.robots.dialogue import Dialogue
    from planners.styles import FactView

log = logging.getLogger(__name__)
MOST = 100_000  # facts that wait; of more the oldest are dropped
BATCH = 100  # facts per call: a request to a server has a limit
REFUSALS = (400, 422)  # what a server answers to facts that it will never take


class Unseen:
    """What no planner has taken in yet. It is told again, by the next look, plan or task."""

    def __init__(self) -> None:
        self._facts: list[FactView] = []
        self._lock = Lock()

    def add(self, facts: Iterable[FactView]) -> None:
        new = tuple(facts)
        with self._lock:
            self._facts.extend(new)
            dropped, self._facts = len(self._facts) - MOST, self._facts[-MOST:]
        if dropped > 0:
            log.warning("%d facts dropped that no planner took in: %d wait at most", dropped, MOST)

    def tell(self, dialogue: Dialogue) -> tuple[FactView, ...]:
        """Those that the planner has taken in. One that it refuses is logged and dropped: no task would ever begin.

        Raises what else the planner raises; then the rest waits for the next call.
        """
        told: list[FactView] = []
        while batch := self._next():
            taken = _hand_over(dialogue, batch)
            if taken is None:
                break
            told.extend(taken)
            with self._lock:  # what came meanwhile stands behind; a full list may have lost its head
                gone = set(map(id, batch))
                self._facts = [fact for fact in self._facts if id(fact) not in gone]
        return tuple(told)

    def _next(self) -> list[FactView]:
        with self._lock:
            return self._facts[:BATCH]


def _hand_over(dialogue: Dialogue, facts: Sequence[FactView]) -> Sequence[FactView] | None:
    """Those that were not refused, found by halving; None if the task is over and nobody was asked."""
    try:
        return facts if dialogue.observe(facts) else None
    except Exception as error:
        if not _refuses(error):
            raise
        if len(facts) == 1:
            log.warning("the planner refuses a fact, which is dropped: %s", error)
            return ()
    middle = len(facts) // 2
    first, second = _hand_over(dialogue, facts[:middle]), _hand_over(dialogue, facts[middle:])
    return None if first is None or second is None else [*first, *second]


def _refuses(error: Exception) -> bool:
    """Of an agent in this process, or behind a server."""
    return isinstance(error, DataError) or getattr(error, "status", None) in REFUSALS
