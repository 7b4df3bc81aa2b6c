"""Waits for conditions, as long as a busy machine needs: no test measures time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 240.0  # seconds after which a wait fails on any machine; pytest ends a test after 300


def until(condition: Callable[[], object], what: Callable[[], str] = lambda: "the condition was not met") -> None:
    """Return when ``condition`` holds; fail with the text of ``what`` after `PATIENCE`."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, what()
        time.sleep(0.01)


class FakeTime:
    """Clock that moves when ``sleep`` is called, in place of ``time.perf_counter`` and ``time.sleep``.

    :param tick: seconds by which each reading moves it
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.elapsed, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.elapsed += self.tick
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(0.0, seconds)
