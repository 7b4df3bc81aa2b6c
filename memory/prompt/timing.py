"""Step timer: seconds of the parts of one step, which exclude each other and add up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memory.segments.sentence_encoder import SentenceEncoder


class StepTimer:
    """Seconds per part. A part inside another interrupts it, so nothing is counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.add(self._stack[-1], now - self._since)
        self._since = now


class TimedEncoder:
    """Sentence encoder whose time is the timer's part ``embed``."""

    def __init__(self, inner: SentenceEncoder) -> None:
        self.name = inner.name
        self.timer = StepTimer()
        self._inner = inner

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self.timer.part("embed"):
            return self._inner.encode(texts)
