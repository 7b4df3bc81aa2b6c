"""Prefetcher: encodes what changed while the robot moves, so that the next plan finds it done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory.session import MemorySession

CHUNK = 128  # tokens of one job: as long may a plan have to wait for it


@dataclass(frozen=True, slots=True)
class Encoded:
    """What was done ahead since the last decision."""

    tokens: int = 0
    ms: float = 0.0
    left: int = 0  # tokens that were still lacking when it was last looked
    error: str = ""  # why it ended; the plan that wants the same will say so too


class Prefetcher:
    """Encodes for one session, a chunk a job, behind every plan of any agent. Call it on the engine's worker.

    :param query: what the next prompt's segments are chosen by
    """

    def __init__(self, session: MemorySession, query: Callable[[], str]) -> None:
        self._session, self._query = session, query
        self._queued = self._stopped = False
        self._done = Encoded()

    def wake(self) -> None:
        """Something may have changed."""
        if not self._queued and not self._stopped:
            self._queued = True
            self._session.engine.later(self._work)

    def take(self) -> Encoded:
        """What was done since it was last asked."""
        done, self._done = self._done, Encoded()
        return done

    def stop(self) -> None:
        """Begin no more jobs."""
        self._stopped = True

    def _work(self) -> None:
        self._queued = False
        if self._stopped:
            return
        began, before = time.perf_counter(), self._done
        try:
            tokens, left = self._session.prepare(self._query(), CHUNK)
        except Exception as error:  # nobody waits for this job
            self._done = Encoded(before.tokens, before.ms, before.left, str(error))
            return
        took = 1e3 * (time.perf_counter() - began)
        self._done = Encoded(before.tokens + tokens, before.ms + took, left)
        if left and tokens and not (before.left and left >= before.left):  # a full storage forgets what it is given
            self.wake()
