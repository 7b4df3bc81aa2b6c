"""First difference of two JSON values, as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

_AROUND = 40  # characters shown on either side of the first different one
_ABSENT = object()


def first_difference(recorded: Any, current: Any) -> str | None:
    """Return the place of the difference with both values; None if the two are equal."""
    if recorded == current:
        return None
    old, new = dict(_leaves(recorded)), dict(_leaves(current))
    for place in old | new:
        before, after = old.get(place, _ABSENT), new.get(place, _ABSENT)
        if before != after:
            return f"{place} was {_excerpt(before, after)}, is {_excerpt(after, before)}"
    return "the same values are nested otherwise"


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all places of a value with their leaves; empty objects and lists are leaves too."""
    if value and isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}".lstrip("."))
    elif value and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def _excerpt(value: Any, reference: Any) -> str:
    """Return a value for a message; of a text the part at the first character that differs from the reference."""
    if value is _ABSENT:
        return "not there"
    if not isinstance(value, str):
        return repr(value)
    start = 0
    if isinstance(reference, str):
        start = next(i for i, (a, b) in enumerate(zip_longest(value, reference)) if a != b) - _AROUND
    start, stop = max(0, start), max(0, start) + 2 * _AROUND
    return f"{'...' if start else ''}{value[start:stop]!r}{'...' if stop < len(value) else ''}"
