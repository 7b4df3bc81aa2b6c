"""Where two JSON values differ first, in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

_AROUND = 40  # characters shown before and after the first that differs
_NOTHING = object()


def first_difference(recorded: Any, asked: Any) -> str | None:
    """The place, and both values there; None if the two are equal."""
    if recorded == asked:
        return None
    old, new = dict(_leaves(recorded)), dict(_leaves(asked))
    for place in old | new:
        one, other = old.get(place, _NOTHING), new.get(place, _NOTHING)
        if one != other:
            return f"{place} was {_shown(one, other)}, is {_shown(other, one)}"
    return "the same values are nested otherwise"


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """All places of a value with what is there; what is empty is a leaf too."""
    if value and isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}".lstrip("."))
    elif value and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def _shown(value: Any, other: Any) -> str:
    if value is _NOTHING:
        return "not there"
    if not isinstance(value, str):
        return repr(value)
    start = _first(value, other) - _AROUND if isinstance(other, str) else 0
    start, stop = max(0, start), max(0, start) + 2 * _AROUND
    return f"{'...' if start else ''}{value[start:stop]!r}{'...' if stop < len(value) else ''}"


def _first(value: str, other: str) -> int:
    """The index of the first character that differs."""
    return next(index for index, (a, b) in enumerate(zip_longest(value, other)) if a != b)
