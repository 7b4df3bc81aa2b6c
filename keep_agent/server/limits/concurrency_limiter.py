"""Concurrency limiter: bounds concurrent requests, in total and per agent; others are rejected with a retry time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean

from starlette.requests import HTTPConnection

from keep_agent.errors import ConfigError
from keep_agent.server.error_handlers import Busy

RECENT_REQUESTS = 32  # recent requests whose mean duration estimates the retry time
MAX_RETRY_SECONDS = 60  # maximum retry time in seconds


class ConcurrencyLimiter:
    """Limiter of concurrent requests: ``most`` in total, ``share`` per owner (an agent or a token). For one event loop.

    :param what: noun for the requests in error messages
    :param owner: noun for an owner in error messages
    """

    def __init__(self, most: int, share: int | None = None, what: str = "requests", owner: str = "this agent") -> None:
        self.most, self.share = most, most if share is None else share
        self._what, self._owner = what, owner
        if min(self.most, self.share) < 1:
            raise ConfigError(f"most={most}, share={share} admits no request: use 1 or more")
        self._active: list[str | None] = []  # owners of the admitted requests
        self._durations: deque[float] = deque(maxlen=RECENT_REQUESTS)

    @property
    def active(self) -> int:
        return len(self._active)

    @asynccontextmanager
    async def slot(self, agent: str | None = None) -> AsyncIterator[None]:
        """Count a request of the owner ``agent`` during the block. Raises Busy if the total or the share is used up."""
        if agent is not None and self._active.count(agent) >= self.share:
            raise self._busy(f"{self._what} of {self._owner}", self.share, 1)
        if self.active >= self.most:
            raise self._busy(self._what, self.most, self.most)
        self._active.append(agent)
        start = time.monotonic()
        try:
            yield
        finally:
            self._active.remove(agent)
            self._durations.append(time.monotonic() - start)

    async def admit_request(self, connection: HTTPConnection) -> AsyncIterator[None]:
        """Admit a route's request until its response is sent (FastAPI dependency). The agent comes from the path."""
        async with self.slot(connection.path_params.get("agent")):
            yield

    def _busy(self, what: str, most: int, parallel: int) -> Busy:
        """Return the error. Its retry time is the mean duration / ``parallel``, rounded up, 1 to 60 s."""
        mean = fmean(self._durations) if self._durations else 1.0
        seconds = max(1, min(MAX_RETRY_SECONDS, math.ceil(mean / parallel)))
        return Busy(f"{what} at once: {most} at most; try again in {seconds} s", seconds)
