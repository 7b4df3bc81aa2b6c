"""Prefetcher: encodes changed segments while the robot moves, so that the next plan need not encode them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory.session import MemorySession

CHUNK = 128  # maximum tokens per job, or one larger unit; a plan waits for one job at most


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """Statistics of background encoding since the last decision: encoded tokens, and their time in ms."""

    tokens: int = 0
    ms: float = 0.0
    left: int = 0  # tokens whose keys and values were not stored yet after the last job
    error: str = ""  # message of the last job's error; a plan with the same segments raises it, too


class Prefetcher:
    """Encoder of a session's changed segments, in background jobs. ``query`` returns the query text for retrieval."""

    def __init__(self, session: MemorySession, query: Callable[[], str]) -> None:
        self._session, self._query = session, query
        self._queued = self._stopped = False
        self._stats = PrefetchStats()

    def schedule(self) -> None:
        """Queue a job, unless one is queued. Call this when segments may have changed."""
        if not self._queued and not self._stopped:
            self._queued = True
            self._session.engine.in_background(self._work)

    def take_stats(self) -> PrefetchStats:
        """Return the statistics since the last call, and reset them."""
        done, self._stats = self._stats, PrefetchStats()
        return done

    def stop(self) -> None:
        self._stopped = True

    def _work(self) -> None:
        self._queued = False
        if self._stopped:
            return
        began, before = time.perf_counter(), self._stats
        try:
            tokens, remaining = self._session.prepare(self._query(), CHUNK)
        except Exception as error:  # no caller waits for this job, so the trace has the error
            self._stats = PrefetchStats(before.tokens, before.ms, before.left, str(error))
            return
        took = 1e3 * (time.perf_counter() - began)
        self._stats = PrefetchStats(before.tokens + tokens, before.ms + took, remaining)
        if remaining and tokens and not (before.left and remaining >= before.left):
            self.schedule()  # otherwise all segments are encoded, or the storage is full
