"""Growth of time with the number of segments n: a + b n + c n² with coefficients >= 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LEAST = 2  # sizes for a line; a parabola needs one more


@dataclass(frozen=True, slots=True)
class Growth:
    """Milliseconds: ``fixed`` + ``linear`` n + ``quadratic`` n², over ``sizes`` from ``low`` to ``high``.

    ``error`` is the largest relative deviation of the fit.
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
        """Return the milliseconds that one more segment costs."""
        return self.linear + 2 * self.quadratic * segments

    def curved(self, segments: float) -> float:
        """Return the share of the quadratic part."""
        whole = self.at(segments)
        return self.quadratic * segments**2 / whole if whole else 0.0


def fit(segments: Sequence[int], ms: Sequence[float]) -> Growth | None:
    """Fit by least squares of relative errors, so that large prompts do not dominate; None for a single size.

    The best fit without negative coefficients is the best of all fits with some coefficients fixed at zero.
    """
    sizes, times = np.asarray(segments, float), np.asarray(ms, float)
    different = len(set(segments))
    if different < LEAST:
        return None
    powers = np.stack([sizes**power for power in range(min(3, different))], 1) / times[:, None]
    best, least = np.zeros(3), np.inf
    for count in range(1, powers.shape[1] + 1):
        for terms in combinations(range(powers.shape[1]), count):
            coefficients = np.linalg.lstsq(powers[:, terms], np.ones(len(times)), rcond=None)[0]
            loss = float(np.square(powers[:, terms] @ coefficients - 1).sum())
            if coefficients.min() >= 0 and loss < least - 1e-15:
                best, least = np.zeros(3), loss
                best[list(terms)] = coefficients
    error = float(np.abs(powers @ best[: powers.shape[1]] - 1).max())
    return Growth(*map(float, best), different, min(segments), max(segments), error)
