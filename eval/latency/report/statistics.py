"""Medians, tails and bootstrap intervals of step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the steps of one kind. The interval is that of the median, 95 %; one value has none."""

    count: int
    p50: float
    p95: float
    mean: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        if not len(values):
            return None
        data = np.asarray(values, float)
        middle, high = np.percentile(data, [50, 95])
        return cls(len(data), float(middle), float(high), float(data.mean()), median_interval(values))


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap of the median, 95 %; steps are drawn singly."""
    data = np.asarray(values, float)
    if data.size < 2:
        return None
    picks = np.random.default_rng(seed).integers(0, data.size, (RESAMPLES, data.size))
    low, high = np.percentile(np.median(data[picks], 1), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster: the median over steps of base / own, paired, and the ratio of both medians."""

    paired: float
    interval: tuple[float, float] | None
    medians: float

    @classmethod
    def of(cls, base: Sequence[float], own: Sequence[float]) -> Ratio | None:
        """None where the steps are not the same."""
        if not len(own) or len(base) != len(own):
            return None
        ratios = np.asarray(base, float) / np.asarray(own, float)
        return cls(float(np.median(ratios)), median_interval(ratios), float(np.median(base) / np.median(own)))
