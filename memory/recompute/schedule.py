"""How the share of recomputed memory falls from layer to layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from keep_agent.errors import ConfigError, check_choice

SHAPES = ("linear", "cosine", "step")


@dataclass(frozen=True)
class Schedule:
    """Share of memory (segments or rows) to recompute at layers 1, 2, ...; layer 0 always computes all of it.

    The paper says that the share falls gradually and keeps a low average, and gives no formula. ``average`` is over
    layers 1 to the last; ``last`` is the share at the last layer in units of the average. ``step`` falls once, behind
    the ``until`` share of these layers: those before recompute everything if the average allows it, because the first
    layers do not know yet what the query is about. ``linear`` and ``cosine`` fall all the way.
    """

    shape: str = "step"
    average: float = 0.22
    last: float = 0.1
    until: float = 0.18

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, SHAPES)
        if not 0 <= self.average <= 1 or not 0 <= self.last <= 1:
            raise ConfigError(f"average={self.average} and last={self.last} are shares: use 0 to 1")
        if not 0 <= self.until < 1:
            raise ConfigError(f"until={self.until} leaves no layer behind the step: use 0 to less than 1")

    def ratios(self, layers: int) -> list[float]:
        """Shares at layers 1 .. ``layers`` - 1, falling, of mean ``average``."""
        count = layers - 1
        if count <= 1:
            return [self.average] * count
        low = max(self.last * self.average, 2 * self.average - 1)
        falls = [self._fall(i, count) for i in range(count)]
        mean = sum(falls) / count
        high = low + (self.average - low) / mean
        if high > 1:  # a step cannot rise above everything: what it may not have, the rest gets
            high, low = 1.0, (self.average - mean) / (1 - mean)
        return [low + (high - low) * fall for fall in falls]

    def counts(self, layers: int, total: int) -> list[int]:
        """How many of ``total`` those are at layers 0 .. ``layers`` - 1; no share above 0 becomes none."""
        return [max(1, round(ratio * total)) if ratio > 0 else 0 for ratio in [1.0, *self.ratios(layers)]]

    def _fall(self, index: int, count: int) -> float:
        """From 1 at the first to 0 at the last."""
        if self.shape == "step":
            return float(index < min(count - 1, max(1, round(count * self.until))))
        x = index / (count - 1)
        return 1 - x if self.shape == "linear" else (1 + math.cos(math.pi * x)) / 2
