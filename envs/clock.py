"""Clock of a time limit shared by several operations."""

from __future__ import annotations

import time


class Clock:
    """Time limit that starts when the object is created; all times are in seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds until the limit; negative after the limit."""
        return self.seconds - self.elapsed

    def timeout(self) -> float:
        """Return the remaining seconds. Raises TimeoutError after the limit."""
        remaining = self.remaining
        if remaining <= 0:
            raise TimeoutError("the time limit is over")
        return remaining
