"""Numbers in JSON files of worlds."""

from __future__ import annotations

from typing import Any


def finite(value: Any) -> float:
    """Return a number from JSON as a float. Raises ValueError for booleans, texts, NaN and infinities."""
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise ValueError(f"{value!r:.40} is no finite number")
    return float(value)
