"""A prompt format in which every segment has the same number of tokens."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from planners.prompts.formats import Format


class FixedLengthFormat:
    """``format`` with each segment's line repeated or cut to ``tokens`` tokens, of which the newline is the last.

    A line is cut at its start, because changes are at its end. Lines that become equal share a block.
    """

    def __init__(self, format: Format, tokens: int) -> None:
        self._format, self._tokens = format, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def line(self, text: str) -> list[int]:
        """Return the ``tokens`` token ids of a segment; a bare newline is not changed."""
        *body, newline = self._format.line(text)
        room = self._tokens - 1 if body else 0
        return [*islice(cycle(body[-room:]), room), newline]
