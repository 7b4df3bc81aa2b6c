"""Hints for error messages: the known name that is closest to one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """``; did you mean 'Mug'?``, or "" where nothing is similar. ``cutoff``: 0 takes any, 1 the same name only."""
    closest = get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)
    return f"; did you mean {closest[0]!r}?" if closest else ""
