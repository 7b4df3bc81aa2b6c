from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.intervals import mean_interval, ratio_interval


def test_an_interval_of_equal_values_is_a_point() -> None:
    assert mean_interval({"a": [2.0, 2.0], "b": [2.0]}) == (2.0, 2.0)
    assert ratio_interval({"a": [4.0], "b": [2.0]}, {"a": [2.0], "b": [1.0]}) == (2.0, 2.0)


def test_one_cluster_has_no_interval() -> None:
    assert mean_interval({"a": [0.0, 1.0]}) is None
    assert ratio_interval({"a": [4.0, 5.0], "b": [1.0]}, {"a": [2.0, 3.0]}) is None


def test_clusters_widen_the_interval() -> None:
    """Forty values that agree in groups of ten say as little as four do."""
    values = np.random.default_rng(0).normal(size=4).repeat(10)
    single = mean_interval({i: [v] for i, v in enumerate(values)})
    grouped = mean_interval({i: list(values[10 * i : 10 * i + 10]) for i in range(4)})
    assert grouped[1] - grouped[0] > 2 * (single[1] - single[0])


def test_coverage_is_near_the_level() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        low, high = mean_interval({i: [v] for i, v in enumerate(rng.normal(3.0, 1.0, 40))}, resamples=300)
        hits += low <= 3.0 <= high
    assert 86 <= hits <= 100


def test_a_paired_ratio_is_not_blurred_by_what_both_sides_share() -> None:
    """Prompts differ a hundredfold between clusters; the ratio is 0.5 in every one of them."""
    slow = {i: [10.0**i, 1.1 * 10.0**i] for i in range(3)}
    fast = {key: [v / 2 for v in values] for key, values in slow.items()}
    assert ratio_interval(fast, slow) == pytest.approx((0.5, 0.5))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=6))
def test_the_interval_stays_within_the_clusters_means(groups: list[list[float]]) -> None:
    means = [sum(group) / len(group) for group in groups]
    low, high = mean_interval(dict(enumerate(groups)), resamples=50)
    assert min(means) - 1e-9 <= low <= high <= max(means) + 1e-9
