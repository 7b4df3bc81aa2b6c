"""So many at once, and no more: who comes too many is told when to come again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean

from keep_agent.errors import ConfigError
from keep_agent.server.problems import Busy

RECENT = 32  # requests whose durations say how long the next one has to wait
LONGEST = 60  # seconds


class Gate:
    """At most ``most`` requests are in the works. For one event loop."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ConfigError(f"most={most} lets nobody in: use 1 or more")
        self.most = most
        self.inside = 0
        self._took: deque[float] = deque(maxlen=RECENT)

    @property
    def seconds(self) -> int:
        """After which one of those inside has probably left, as far as the last ones tell."""
        mean = fmean(self._took) if self._took else 1.0
        return max(1, min(LONGEST, math.ceil(mean / self.most)))

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Raises Busy if there is no room."""
        if self.inside >= self.most:
            raise Busy(f"{self.most} requests are in the works; come again in {self.seconds} s", self.seconds)
        self.inside += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self.inside -= 1
            self._took.append(time.monotonic() - began)

    async def admitted(self) -> AsyncIterator[None]:
        """The same as a dependency of a route, until its whole answer is sent."""
        async with self.entered():
            yield
