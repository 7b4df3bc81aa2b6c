"""Bootstrap intervals that respect clusters: annotations of one trial, tasks of one stream, steps of one episode.

One cluster says nothing about how clusters differ: its interval is None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Samples = Mapping[Hashable, Sequence[float]]  # values per cluster
RESAMPLES = 2000


def _picks(clusters: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """(resamples, clusters) indices of the clusters drawn with replacement."""
    return np.random.default_rng(seed).integers(0, clusters, (resamples, clusters))


def _bounds(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def mean_interval(
    samples: Samples, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of the mean over all values, clusters drawn whole."""
    values = [np.asarray(v, float) for v in samples.values() if len(v)]
    if len(values) < 2:
        return None
    sums, counts = np.array([v.sum() for v in values]), np.array([v.size for v in values])
    picks = _picks(len(values), resamples, seed)
    return _bounds(sums[picks].sum(1) / counts[picks].sum(1), level)


def ratio_interval(
    top: Samples,
    bottom: Samples,
    statistic: Callable[[NDArray[np.float64]], float] = np.median,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Interval of ``statistic(top) / statistic(bottom)``; both sides draw the same clusters, so the pairing stays.

    Clusters missing on either side are left out.
    """
    common = [key for key in top if len(top[key]) and len(bottom.get(key, ()))]
    if len(common) < 2:
        return None
    above = [np.asarray(top[key], float) for key in common]
    below = [np.asarray(bottom[key], float) for key in common]
    ratios = np.array(
        [
            statistic(np.concatenate([above[i] for i in pick])) / statistic(np.concatenate([below[i] for i in pick]))
            for pick in _picks(len(common), resamples, seed)
        ]
    )
    return _bounds(ratios, level)
