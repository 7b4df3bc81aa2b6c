"""Waiting for a condition, as long as a busy machine needs: no test measures time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 240.0  # seconds after which something has gone wrong on any machine; pytest ends a test after 300


def until(condition: Callable[[], object], what: Callable[[], str] = lambda: "it did not come true") -> None:
    """Return when ``condition`` holds. Fails with the text that ``what`` gives after `PATIENCE`."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, what()
        time.sleep(0.01)


class FakeTime:
    """A clock that moves when somebody sleeps, in place of ``time.perf_counter`` and ``time.sleep``.

    :param tick: seconds by which each look at it moves it, too
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
