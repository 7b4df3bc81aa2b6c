"""Statistics of measured times: fits, intervals, ratios and memory peaks."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from eval.latency.machine import MemoryPeak
from eval.latency.report.summary import Ratio, Spread, fit, median_interval

SIZES = (10, 20, 40, 80, 160)


@pytest.mark.parametrize("true", [(5.0, 2.0, 0.01), (0.0, 3.0, 0.0), (7.0, 0.0, 0.0), (0.0, 0.0, 0.2), (4.0, 0.0, 0.1)])
def test_a_fit_finds_the_coefficients_of_the_times(true: tuple[float, float, float]) -> None:
    growth = fit(SIZES, [true[0] + true[1] * n + true[2] * n * n for n in SIZES])
    assert (growth.fixed, growth.linear, growth.quadratic) == pytest.approx(true, abs=1e-9)
    assert growth.error == pytest.approx(0.0, abs=1e-9) and (growth.low, growth.high) == (10, 160)
    assert growth.slope(40) == pytest.approx(true[1] + 80 * true[2], abs=1e-9)
    assert growth.curved(160) == pytest.approx(true[2] * 160**2 / sum(c * 160**p for p, c in enumerate(true)), abs=1e-9)


def test_a_fit_is_never_negative_and_no_worse_than_a_line() -> None:
    falling = fit(SIZES, [100.0, 90.0, 80.0, 75.0, 70.0])
    assert (falling.linear, falling.quadratic) == (0.0, 0.0) and 70 < falling.fixed < 100
    noisy = fit(SIZES, [12.0, 19.0, 45.0, 78.0, 165.0])
    assert min(noisy.fixed, noisy.linear, noisy.quadratic) >= 0 and noisy.error < 0.25


def test_the_number_of_sizes_decides_the_fit() -> None:
    assert fit([40, 40], [1.0, 2.0]) is None
    line = fit([10, 20], [3.0, 5.0])
    assert (line.fixed, line.linear, line.quadratic) == pytest.approx((1.0, 0.2, 0.0))


def test_an_interval_contains_the_median_and_narrows_with_steps() -> None:
    rng = np.random.default_rng(1)
    few, many = rng.normal(100, 10, 10), rng.normal(100, 10, 400)
    narrow, wide = median_interval(many), median_interval(few)
    assert narrow[0] < 100 < narrow[1] and narrow[1] - narrow[0] < 0.5 * (wide[1] - wide[0])
    assert median_interval(many) == narrow and median_interval([3.0]) is None
    spread = Spread.of([1.0, 2.0, 9.0])
    assert (spread.count, spread.p50, spread.mean, spread.p95) == (3, 2.0, 4.0, pytest.approx(8.3))
    assert Spread.of([]) is None


def test_ratios_are_paired_by_step() -> None:
    """Noise slows both methods at a step: the ratio stays constant, and its interval is a point."""
    noise = np.array([1.0, 5.0, 1.0, 7.0, 2.0])
    ratio = Ratio.of(3 * noise, noise)
    assert ratio.paired == pytest.approx(3.0) and ratio.interval == pytest.approx((3.0, 3.0))
    mixed = Ratio.of([1.0, 10.0, 10.0], [1.0, 1.0, 20.0])
    assert mixed.paired == 1.0 and mixed.medians == 10.0
    assert Ratio.of([1.0], [1.0, 2.0]) is None and Ratio.of([], []) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the high-water mark")
def test_a_peak_is_the_memory_in_use_and_is_reset() -> None:
    cpu, size = torch.device("cpu"), 64 << 20
    peak = MemoryPeak(cpu)
    block = torch.ones(size, dtype=torch.uint8)
    first = peak.growth()
    del block
    assert 0.9 * size < first < 1.5 * size
    assert MemoryPeak(cpu).growth() < 0.5 * size
