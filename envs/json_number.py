"""Numbers in the JSON files of worlds."""

from __future__ import annotations

from typing import Any


def finite(value: Any) -> float:
    """A number as JSON has them. Raises ValueError for true and false, texts, NaN and infinities."""
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise ValueError(f"{value!r:.40} is no finite number")
    return float(value)
