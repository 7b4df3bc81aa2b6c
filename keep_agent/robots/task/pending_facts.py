"""Pending facts: those of a robot, or of another source, that the planner has not taken in yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from keep_agent.errors import CapacityError, DataError

if TYPE_CHECKING:
    from keep_agent.robots.task.dialogue import Dialogue
    from planners.prompts.styles import FactView

log = logging.getLogger(__name__)
MOST = 100_000  # facts that wait; of more the oldest are dropped
BATCH = 100  # facts per call: a request to a server has a limit
WRONG, FULL = (400, 422), 507  # what a server answers to a fact that it will never take, or has no room for


class PendingFacts:
    """Latest fact of each thing that no planner has taken in yet. The next look, plan or task hands them over."""

    def __init__(self) -> None:
        self._facts: dict[str, FactView] = {}
        self._lock = Lock()

    def add(self, facts: Iterable[FactView]) -> None:
        new = {fact.id: fact for fact in facts}
        with self._lock:
            self._facts = {id: fact for id, fact in self._facts.items() if id not in new} | new
            dropped = list(self._facts)[:-MOST]
            for id in dropped:
                del self._facts[id]
        if dropped:
            log.warning("%d facts dropped that no planner took in: %d wait at most", len(dropped), MOST)

    def tell(self, dialogue: Dialogue) -> tuple[FactView, ...]:
        """Those that the planner has taken in. A wrong one is logged and dropped: else no task would ever begin.

        Those that there is no room for wait, and the error is raised when all that says that something is gone was
        told. Raises what else the planner raises.
        """
        told: list[FactView] = []
        full: Exception | None = None
        with self._lock:
            waiting = list(self._facts.values())
        for start in range(0, len(waiting), BATCH):
            batch = [fact for fact in waiting[start : start + BATCH] if full is None or fact.gone]
            for facts, error in _hand_over(dialogue, batch):
                if error is not None and _is_full(error):
                    full = error
                else:
                    self._done_with(facts)
                told.extend(facts if error is None else ())
        if full is not None:
            raise full
        return tuple(told)

    def _done_with(self, facts: Sequence[FactView]) -> None:
        with self._lock:
            for fact in facts:
                if self._facts.get(fact.id) is fact:  # nothing newer has come meanwhile
                    del self._facts[fact.id]


def _hand_over(dialogue: Dialogue, facts: Sequence[FactView]) -> Iterator[tuple[Sequence[FactView], Exception | None]]:
    """Facts that were told, and by halving each that was refused. Nothing if the task is over."""
    if not facts:
        return
    try:
        if dialogue.observe(facts):
            yield facts, None
        return
    except Exception as error:
        if not (_is_wrong(error) or _is_full(error)):
            raise
        if len(facts) == 1:
            log.warning("the planner does not take in a fact: %s", error)
            yield facts, error
            return
    middle = len(facts) // 2
    yield from _hand_over(dialogue, facts[:middle])
    yield from _hand_over(dialogue, facts[middle:])


def _is_wrong(error: Exception) -> bool:
    """Of an agent in this process, or behind a server."""
    return isinstance(error, DataError) or getattr(error, "status", None) in WRONG


def _is_full(error: Exception) -> bool:
    return isinstance(error, CapacityError) or getattr(error, "status", None) == FULL
