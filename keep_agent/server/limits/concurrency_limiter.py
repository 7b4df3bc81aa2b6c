"""Concurrency limiter: requests at once, in all and per agent; one too many is refused with a time to retry."""

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

RECENT = 32  # requests whose durations say how long the next one has to wait
LONGEST = 60  # seconds


class ConcurrencyLimiter:
    """At most ``most`` requests are in the works, of one agent ``each``. For one event loop.

    :param what: they are called in messages; ``each`` is the share of ``whose``
    """

    def __init__(self, most: int, each: int | None = None, what: str = "requests", whose: str = "this agent") -> None:
        self.most, self.each = most, most if each is None else each
        self._what, self._whose = what, whose
        if min(self.most, self.each) < 1:
            raise ConfigError(f"most={most}, each={each} lets nobody in: use 1 or more")
        self._inside: list[str | None] = []  # whose they are
        self._took: deque[float] = deque(maxlen=RECENT)

    @property
    def inside(self) -> int:
        return len(self._inside)

    @asynccontextmanager
    async def entered(self, agent: str | None = None) -> AsyncIterator[None]:
        """Raises Busy if there is no room, or too many of this agent's are inside."""
        if agent is not None and self._inside.count(agent) >= self.each:
            raise self._busy(f"{self._what} of {self._whose}", self.each, 1)
        if self.inside >= self.most:
            raise self._busy(self._what, self.most, self.most)
        self._inside.append(agent)
        began = time.monotonic()
        try:
            yield
        finally:
            self._inside.remove(agent)
            self._took.append(time.monotonic() - began)

    async def admitted(self, connection: HTTPConnection) -> AsyncIterator[None]:
        """The same as a dependency of a route, until its whole answer is sent. The agent is the path's."""
        async with self.entered(connection.path_params.get("agent")):
            yield

    def _busy(self, what: str, most: int, together: int) -> Busy:
        """One of those inside, ``together`` of which are served, has left by then, as far as the last ones tell."""
        mean = fmean(self._took) if self._took else 1.0
        seconds = max(1, min(LONGEST, math.ceil(mean / together)))
        return Busy(f"{what} at once: {most} at most; come again in {seconds} s", seconds)
