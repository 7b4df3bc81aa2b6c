"""Concurrency limiter: bounds concurrent requests, in total and per owner. The rest is rejected with a retry time."""

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

RECENT_REQUESTS = 32  # number of recent requests; their mean duration estimates the retry time
MAX_RETRY_SECONDS = 60  # maximum retry time in seconds


class ConcurrencyLimiter:
    """Limiter of concurrent requests, in total and per owner (an agent or a token). Use it in one event loop only.

    :param most: maximum in total
    :param most_per_owner: maximum for one owner; None: ``most``
    :param what: noun for the requests in error messages
    :param owner: noun for an owner in error messages
    """

    def __init__(
        self, most: int, most_per_owner: int | None = None, what: str = "requests", owner: str = "this agent"
    ) -> None:
        self.most, self.most_per_owner = most, most if most_per_owner is None else most_per_owner
        self._what, self._owner_noun = what, owner
        if min(self.most, self.most_per_owner) < 1:
            raise ConfigError(f"most={most}, most_per_owner={most_per_owner} admits no request: use 1 or more")
        self._active: list[str | None] = []  # owners of the admitted requests
        self._durations: deque[float] = deque(maxlen=RECENT_REQUESTS)

    @property
    def active(self) -> int:
        return len(self._active)

    @asynccontextmanager
    async def admit(self, owner: str | None = None) -> AsyncIterator[None]:
        """Admit a request of ``owner`` for the block. Raises Busy if one of the two maximums is reached."""
        if owner is not None and self._active.count(owner) >= self.most_per_owner:
            raise self._busy(f"{self._what} of {self._owner_noun}", self.most_per_owner, 1)
        if self.active >= self.most:
            raise self._busy(self._what, self.most, self.most)
        self._active.append(owner)
        start = time.monotonic()
        try:
            yield
        finally:
            self._active.remove(owner)
            self._durations.append(time.monotonic() - start)

    async def admit_request(self, connection: HTTPConnection) -> AsyncIterator[None]:
        """Hold a slot until a request's response is sent (FastAPI dependency). The owner is the agent in the path."""
        async with self.admit(connection.path_params.get("agent")):
            yield

    def _busy(self, what: str, most: int, parallel: int) -> Busy:
        """Return the error. Its retry time, 1 to 60 s, is the mean request duration divided by ``parallel``."""
        mean = fmean(self._durations) if self._durations else 1.0
        seconds = max(1, min(MAX_RETRY_SECONDS, math.ceil(mean / parallel)))
        return Busy(f"{what} at once: {most} at most; try again in {seconds} s", seconds)
