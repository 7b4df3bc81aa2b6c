"""A prompt format in which every segment has the same number of tokens."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from planners.prompts.formats import Format


class FixedLengthFormat:
    """``format``, but a segment's line is repeated or cut to ``tokens`` tokens; its newline stays the last of them.

    A line is cut in front: what changes stands at its end. Two that come out alike share a block, as equal lines do.
    """

    def __init__(self, format: Format, tokens: int) -> None:
        self._format, self._tokens = format, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def line(self, text: str) -> list[int]:
        """Token ids of a segment, ``tokens`` of them; a bare newline stays what it is."""
        *body, newline = self._format.line(text)
        room = self._tokens - 1 if body else 0
        return [*islice(cycle(body[-room:]), room), newline]
