"""95 % intervals over clusters of correlated values: annotations of a trial, tasks of a stream, steps of an episode.

Shares have Wilson's interval. Means, differences and ratios have a bootstrap interval, which resamples whole clusters.
Clusters of the same mean give it width 0. `mean_interval` with known limits of the values is then wider: the share
`unseen_share` of clusters may lie at a limit. One cluster has no interval (None), since it does not show how clusters
vary. Definitions: docs/evaluation.md#intervals.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Samples = Mapping[Hashable, Sequence[float]]  # values per cluster
Interval = tuple[float, float] | None
LEVEL = 0.95
RESAMPLES, RATIO_RESAMPLES = 2000, 1000
MEAN_TOLERANCE = 1e-12  # smaller differences of means are rounding errors
WIDE_INTERVAL, FEW_CLUSTERS = 0.2, 10  # limits: a wider interval or fewer clusters mean too little data
SIGN_TEST_CLUSTERS = 6  # fewest differing clusters with which a sign test can exclude 0 (all in one direction)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of ``pairs`` differences between two runs on the same tasks. ``more`` are positive, ``fewer`` negative."""

    mean: float
    interval: Interval
    more: int
    fewer: int
    pairs: int
    clusters: int

    @property
    def unclear(self) -> bool:
        """Whether there are too few tasks for a conclusion: few clusters, or a wide interval that contains zero."""
        if self.interval is None or self.clusters < FEW_CLUSTERS:
            return True
        low, high = self.interval
        return low <= 0 <= high and high - low > WIDE_INTERVAL


def paired_difference(samples: Samples) -> Difference | None:
    """Summarize paired differences between -1 and 1, given by cluster; None if there are none.

    A bootstrap interval is too narrow if only a few clusters differ. With fewer than `SIGN_TEST_CLUSTERS` differing
    clusters, the returned interval is therefore widened to contain [-`unseen_share`, `unseen_share`].
    """
    values = [value for part in samples.values() for value in part]
    if not values:
        return None
    more, fewer = sum(value > 0 for value in values), sum(value < 0 for value in values)
    clusters = sum(len(part) > 0 for part in samples.values())
    interval = mean_interval(samples, within=(-1.0, 1.0))
    if interval is not None and sum(any(part) for part in samples.values()) < SIGN_TEST_CLUSTERS:
        interval = min(interval[0], -unseen_share(clusters)), max(interval[1], unseen_share(clusters))
    return Difference(sum(values) / len(values), interval, more, fewer, len(values), clusters)


def unseen_share(clusters: int) -> float:
    """Return the exact upper bound of the share of differing clusters, if ``clusters`` were drawn and none differs."""
    return 1 - (1 - LEVEL) ** (1 / clusters)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's score interval of a ``share`` of ``count`` independent observations."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    half = z * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def share_interval(samples: Samples) -> Interval:
    """Return Wilson's interval of the share of values that are 1, among values of 0 or 1.

    Values of one cluster are correlated. The effective sample size is therefore the number of independent values whose
    share has the variance observed between clusters (Korn and Graubard 1998). It is reduced by the squared ratio of two
    quantiles of Student's t, since few clusters estimate a variance badly. If all values are equal, the sample size is
    the number of clusters.
    """
    values = [np.asarray(v, float) for v in samples.values() if len(v)]
    if len(values) < 2:
        return None
    count = sum(v.size for v in values)
    share = float(sum(v.sum() for v in values)) / count
    if share in (0, 1):
        return wilson(share, len(values))
    clusters = len(values)
    independent_variance = share * (1 - share) / (count - 1)  # variance of the share if all values were independent
    cluster_variance = clusters / (clusters - 1) * sum(float((v - share).sum()) ** 2 for v in values) / count**2
    effective = count * independent_variance / cluster_variance if cluster_variance else float(count)
    narrow, wide = stdtrit([count - 1, clusters - 1], (1 + LEVEL) / 2)
    return wilson(share, min(effective, count) * float(narrow / wide) ** 2)


def is_wide(interval: Interval) -> bool:
    """Return whether a share's interval shows too few observations: it is missing or wider than `WIDE_INTERVAL`."""
    return interval is None or interval[1] - interval[0] > WIDE_INTERVAL


def _draw_clusters(clusters: int, resamples: int) -> NDArray[np.int64]:
    """Draw (resamples, clusters) indices of clusters with replacement."""
    return np.random.default_rng(0).integers(0, clusters, (resamples, clusters))


def _bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def mean_interval(samples: Samples, resamples: int = RESAMPLES, within: tuple[float, float] | None = None) -> Interval:
    """Return the percentile interval of the mean over all values; clusters are resampled whole.

    :param within: the least and the greatest possible value; if the means of all clusters are equal, the interval
        assumes that clusters that were not observed may have these values
    """
    values = [np.asarray(v, float) for v in samples.values() if len(v)]
    if len(values) < 2:
        return None
    if within is not None and np.ptp([v.mean() for v in values]) < MEAN_TOLERANCE:
        mean, share = float(values[0].mean()), unseen_share(len(values))
        return (1 - share) * mean + share * within[0], (1 - share) * mean + share * within[1]
    sums, counts = np.array([v.sum() for v in values]), np.array([v.size for v in values])
    picks = _draw_clusters(len(values), resamples)
    return _bounds(sums[picks].sum(1) / counts[picks].sum(1))


def ratio_interval(top: Samples, bottom: Samples) -> Interval:
    """Return the interval of the ratio of medians, top / bottom; a resample draws the same clusters of both."""
    common = [key for key in top if len(top[key]) and len(bottom.get(key, ()))]
    if len(common) < 2:
        return None
    sides = [[np.asarray(side[key], float) for key in common] for side in (top, bottom)]
    picks = _draw_clusters(len(common), RATIO_RESAMPLES)
    above, below = (np.array([np.median(np.concatenate([side[i] for i in pick])) for pick in picks]) for side in sides)
    return _bounds(above / below)


def median_interval(values: Sequence[float], resamples: int = RESAMPLES) -> Interval:
    """Return the percentile interval of the median of independent values; None for fewer than two."""
    data = np.asarray(values, float)
    return None if data.size < 2 else _bounds(np.median(data[_draw_clusters(data.size, resamples)], 1))
