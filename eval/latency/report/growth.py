"""How time grows with the number of segments: a + b n + c n², none of them negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LEAST = 2  # sizes that a line needs; a parabola needs one more


@dataclass(frozen=True, slots=True)
class Growth:
    """Milliseconds: ``fixed`` + ``linear`` n + ``quadratic`` n², over ``sizes`` from ``low`` to ``high``.

    ``error`` is the largest deviation of a fitted point, as a share of it.
    """

    fixed: float
    linear: float
    quadratic: float
    sizes: int
    low: int
    high: int
    error: float

    def at(self, segments: float) -> float:
        return self.fixed + self.linear * segments + self.quadratic * segments**2

    def slope(self, segments: float) -> float:
        """Milliseconds that one more segment costs."""
        return self.linear + 2 * self.quadratic * segments

    def curved(self, segments: float) -> float:
        """Share of the quadratic part."""
        whole = self.at(segments)
        return self.quadratic * segments**2 / whole if whole else 0.0


def fit(segments: Sequence[int], ms: Sequence[float]) -> Growth | None:
    """Least squares of relative errors, so that the largest prompt does not decide alone; None for one size only.

    The best fit without negative coefficients is the best of the fits that leave some of them out.
    """
    sizes, times = np.asarray(segments, float), np.asarray(ms, float)
    different = len(set(segments))
    if different < LEAST:
        return None
    powers = np.stack([sizes**power for power in range(min(3, different))], 1) / times[:, None]
    best, least = np.zeros(3), np.inf
    for count in range(1, powers.shape[1] + 1):
        for kept in combinations(range(powers.shape[1]), count):
            found = np.linalg.lstsq(powers[:, kept], np.ones(len(times)), rcond=None)[0]
            missed = float(np.square(powers[:, kept] @ found - 1).sum())
            if found.min() >= 0 and missed < least - 1e-15:
                best, least = np.zeros(3), missed
                best[list(kept)] = found
    error = float(np.abs(powers @ best[: powers.shape[1]] - 1).max())
    return Growth(*map(float, best), different, min(segments), max(segments), error)
