"""Threads that run calls at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def at_once(*calls: Callable[[], object]) -> None:
    """Run each call on a thread of its own until all have ended; raise the first error."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
