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
    """A clock that moves only when somebody sleeps: in place of ``time.perf_counter`` and ``time.sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
