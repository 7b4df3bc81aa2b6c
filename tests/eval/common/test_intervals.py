from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.common.intervals import mean_interval, paired_difference, ratio_interval, share_interval, unseen_share, wilson
from eval.common.tables import difference, summary_table


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),  # scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    [
        (0, 4, 0.0, 0.4899), (4, 4, 0.5101, 1.0), (1, 10, 0.0179, 0.4042), (10, 20, 0.2993, 0.7007),
        (18, 32, 0.3932, 0.7183),
    ],
)  # fmt: skip
def test_wilson(right: int, count: int, low: float, high: float) -> None:
    assert wilson(right / count, count) == pytest.approx((low, high), abs=1e-4)
    single_values = {i: [float(i < right)] for i in range(count)}
    assert share_interval(single_values) == pytest.approx((low, high), abs=1e-4)


def test_equal_outcomes_of_few_tasks_have_a_wide_interval() -> None:
    """The interval of zero of four is not [0, 0]; tasks of one stream count as one if all outcomes are equal."""
    assert share_interval({i: [0.0] for i in range(4)}) == pytest.approx((0.0, 0.4899), abs=1e-4)
    assert share_interval({i: [1.0] * 5 for i in range(4)}) == pytest.approx((0.5101, 1.0), abs=1e-4)
    assert share_interval({"a": [0.0] * 4}) is None


def test_the_effective_sample_size_depends_on_the_clusters() -> None:
    """Korn and Graubard's formula, at most the number of values; t quantiles for 99, 19, 199 degrees of freedom."""
    alike = {i: [float(i < 10)] * 5 for i in range(20)}
    unlike = {i: [1.0, 0.0] * 5 for i in range(20)}
    assert share_interval(alike) == pytest.approx(wilson(0.5, 20 * 95 / 99 * (1.9842 / 2.0930) ** 2), abs=1e-4)
    assert share_interval(unlike) == pytest.approx(wilson(0.5, 200 * (1.9720 / 2.0930) ** 2), abs=1e-4)


def test_two_streams_give_a_wide_interval() -> None:
    low, high = share_interval({"a": [1.0] * 27 + [0.0] * 23, "b": [1.0] * 24 + [0.0] * 26})
    assert high - low > 0.7


@pytest.mark.parametrize("clusters", [2, 4, 10])
def test_the_share_interval_covers_with_few_clusters(clusters: int) -> None:
    """Streams of 20 tasks with different success rates."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(300):
        rates = rng.beta(7 / 6, 7 / 6, clusters)
        low, high = share_interval({i: (rng.random(20) < rate).astype(float) for i, rate in enumerate(rates)})
        hits.append(low <= 0.5 <= high)
    assert np.mean(hits) >= 0.92


def test_equal_clusters_of_unequal_values_have_a_bound() -> None:
    result = paired_difference({i: [1.0, -1.0] for i in range(12)})
    assert result.interval == pytest.approx((-unseen_share(12), unseen_share(12)))
    assert (result.more, result.fewer) == (12, 12)


def test_the_share_interval_covers() -> None:
    rng = np.random.default_rng(0)
    hits = [low <= 0.1 <= high for low, high in (
        share_interval({i: [float(v)] for i, v in enumerate(rng.random(40) < 0.1)}) for _ in range(400)
    )]  # fmt: skip
    assert 0.92 <= np.mean(hits) <= 0.99


def test_without_differing_pairs_the_interval_is_a_bound() -> None:
    result = paired_difference({i: [0.0] for i in range(820)})
    assert (result.mean, result.more, result.fewer, result.pairs) == (0.0, 0, 0, 820)
    assert result.interval == pytest.approx((-0.00365, 0.00365), abs=1e-5) and unseen_share(820) == result.interval[1]
    assert difference(result) == "+0.0 [-0.4, 0.4] (0 of 820 differ)"
    few = paired_difference({i: [0.0] * 10 for i in range(3)})  # three streams of ten tasks
    assert few.interval == pytest.approx((-0.632, 0.632), abs=1e-3)
    assert difference(few) == "+0.0 [-63.2, 63.2] (0 of 30 differ; too few to tell)"


def test_few_differing_pairs_have_at_least_the_interval_of_none() -> None:
    """A bootstrap alone would exclude zero for one better pair of 251; a sign test needs six better pairs."""
    none = unseen_share(251)
    for better in range(6):
        low, high = paired_difference({i: [float(i < better)] for i in range(251)}).interval
        assert low == -none and high >= none
    low, _ = paired_difference({i: [float(i < 6)] for i in range(251)}).interval
    assert low > 0
    stream = {i: [1.0] * 8 if i == 0 else [0.0] * 8 for i in range(30)}  # eight tasks of one stream count as one
    assert paired_difference(stream).interval[0] == -unseen_share(30)


def test_equal_means_of_clusters_of_different_sizes_count_as_equal() -> None:
    low, high = mean_interval({i: [0.4] * size for i, size in enumerate((1, 3, 7))}, within=(0.0, 1.0))
    assert low < 0.2 and high > 0.7


def test_an_improvement_of_all_pairs_has_a_bound() -> None:
    low, high = paired_difference({i: [1.0] for i in range(20)}).interval
    assert high == pytest.approx(1.0) and low == pytest.approx(1 - 2 * unseen_share(20))


def test_a_difference_counts_the_pairs() -> None:
    values = [1.0] * 12 + [-1.0] * 9 + [0.0] * 79
    result = paired_difference({i: [value] for i, value in enumerate(values)})
    assert difference(result).endswith("(12+ 9-)") and not result.unclear
    assert paired_difference({i: [value] for i, value in enumerate(values[8:14] * 2)}).unclear  # wide, around zero
    assert difference(paired_difference({0: [1.0]})) == "+100.0 (1+ 0-; too few to tell)"
    assert paired_difference({}) is None and difference(None) == "–"


@pytest.mark.parametrize("interval", [None, (0.0, 0.4899)])
def test_a_summary_warns_of_too_few_tasks(interval: tuple[float, float] | None) -> None:
    rates = dict.fromkeys(("success_rate", "goal_condition_rate", "subgoal_success_rate", "path_weighted_success"), 0.0)
    summary = {**rates, "tasks": 4, "per_task_type": {}, "success_interval": interval, "restarted_episodes": 0}
    summary |= {"crashed": 0, "episodes": 4}
    assert "too few tasks to tell" in summary_table(summary, "").caption
    summary["success_interval"] = (0.5, 0.6)
    assert summary_table(summary, "").caption == "95 % interval of success: [50.0, 60.0]"
    summary["crashed"] = 3
    assert summary_table(summary, "").caption.endswith("; 3 of 4 episodes crashed, which counts as failed")


def test_equal_values_have_a_point_and_one_cluster_no_interval() -> None:
    assert mean_interval({"a": [2.0, 2.0], "b": [2.0]}) == (2.0, 2.0)
    assert ratio_interval({"a": [4.0], "b": [2.0]}, {"a": [2.0], "b": [1.0]}) == (2.0, 2.0)
    assert mean_interval({"a": [0.0, 1.0]}) is None
    assert ratio_interval({"a": [4.0, 5.0], "b": [1.0]}, {"a": [2.0, 3.0]}) is None


def test_clusters_widen_the_interval() -> None:
    """Forty values that are equal in groups of ten count as four."""
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


def test_a_paired_ratio_ignores_differences_between_clusters() -> None:
    """Values differ a hundredfold between clusters, but the ratio is 0.5 in each."""
    slow = {i: [10.0**i, 1.1 * 10.0**i] for i in range(3)}
    fast = {key: [v / 2 for v in values] for key, values in slow.items()}
    assert ratio_interval(fast, slow) == pytest.approx((0.5, 0.5))


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=6))
def test_the_interval_stays_within_the_clusters_means(groups: list[list[float]]) -> None:
    means = [sum(group) / len(group) for group in groups]
    low, high = mean_interval(dict(enumerate(groups)), resamples=50)
    assert min(means) - 1e-9 <= low <= high <= max(means) + 1e-9
