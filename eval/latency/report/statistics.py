"""Medians, tails and bootstrap intervals of step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.common.intervals import median_interval


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of values, with the 95 % interval of their median (None for a single value)."""

    count: int
    p50: float
    p95: float
    mean: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Summarize values; None if there are none."""
        if not len(values):
            return None
        data = np.asarray(values, float)
        middle, high = np.percentile(data, [50, 95])
        return cls(len(data), float(middle), float(high), float(data.mean()), median_interval(values))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed-up: the median over paired steps of base / own, and the ratio of both medians."""

    paired: float
    interval: tuple[float, float] | None
    medians: float

    @classmethod
    def of(cls, base: Sequence[float], times: Sequence[float]) -> Ratio | None:
        """Compare the times of the same steps; None if their numbers differ."""
        if not len(times) or len(base) != len(times):
            return None
        ratios = np.asarray(base, float) / np.asarray(times, float)
        return cls(float(np.median(ratios)), median_interval(ratios), float(np.median(base) / np.median(times)))
