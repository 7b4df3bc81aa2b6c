"""A time that runs out, whatever is done in it."""

from __future__ import annotations

import time


class Clock:
    """Counts down from a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def gone(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._start

    @property
    def rest(self) -> float:
        """Seconds left; negative when the time is over."""
        return self.seconds - self.gone

    def left(self) -> float:
        """Seconds left. Raises TimeoutError when there are none."""
        rest = self.rest
        if rest <= 0:
            raise TimeoutError("the time is over")
        return rest
