"""Detokenizer: text that grows token by token, in whole characters, up to the first of some stop strings."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from memory.agents.text_match import BROKEN, LONGEST, Coder


class Detokenizer:
    """Say the same piece by piece as at once.

    Tokens of a character that is not complete yet are held back, and so is what may be the beginning of a stop. Bytes
    that no further ones can make a character of are shown as U+FFFD. ``hidden`` tokens have no text.
    """

    def __init__(self, coder: Coder, stops: Sequence[str] = (), hidden: Collection[int] = ()) -> None:
        self._coder, self._stops, self._hidden = coder, tuple(stop for stop in stops if stop), hidden
        self._tokens: list[int] = []
        self._shown: list[int] = []  # those that are not hidden
        self._ends: list[int] = []  # characters that are complete after each token
        self._begin = self._read = 0  # of those: where the window of what is decoded begins, and where it was read to
        self._said = ""
        self._given = 0
        self.stop: str | None = None

    @property
    def count(self) -> int:
        """Tokens that were taken, up to and with the one that a stop ended in."""
        return len(self._tokens)

    @property
    def whole(self) -> tuple[list[int], str | None]:
        """Tokens that end where a character ends, no later than a stop begins, and what they say.

        None where some are hidden: what is shown is not all they say then.
        """
        after = bisect_right(self._ends, len(self._said))
        end = self._ends[after - 1] if after else 0
        tokens = self._tokens[: bisect_left(self._ends, end) + 1 if end else 0]
        return tokens, None if any(token in self._hidden for token in tokens) else self._said[:end]

    def feed(self, token: int) -> str:
        """Take a token; the text that is certain by now and was not given before."""
        if self.stop is not None:
            return ""
        self._tokens.append(token)
        if token not in self._hidden:
            self._shown.append(token)
            self._said += self._decoded()
        self._ends.append(len(self._said))
        self._cut()
        return self._give(len(self._said) if self.stop is not None else self._certain())

    def flush(self) -> str:
        """What was held back, since no token follows; a character that lacks bytes is left out."""
        return self._give(len(self._said))

    def _decoded(self) -> str:
        """What the tokens say that were not read yet; nothing while their last character lacks bytes.

        They are decoded behind those read before, since some tokens say a space or none by what is in front of them.
        """
        known = self._coder.decode(self._shown[self._begin : self._read])
        both = self._coder.decode(self._shown[self._begin :])
        if both.endswith(BROKEN) and len(self._shown) - self._read <= LONGEST:
            return ""
        self._begin, self._read = self._read, len(self._shown)
        return both[len(known) :]

    def _cut(self) -> None:
        """End before the first stop, if there is one."""
        longest = max(map(len, self._stops), default=0)
        start = max(0, self._given - longest)
        found = [(place, stop) for stop in self._stops if (place := self._said.find(stop, start)) >= 0]
        if found:
            place, self.stop = min(found, key=lambda each: (each[0], -len(each[1])))
            self._said = self._said[:place]

    def _certain(self) -> int:
        """Characters that no stop begins in."""
        for place in range(max(self._given, len(self._said) - max(map(len, self._stops), default=0)), len(self._said)):
            if any(stop.startswith(self._said[place:]) for stop in self._stops):
                return place
        return len(self._said)

    def _give(self, until: int) -> str:
        piece = self._said[self._given : until]
        self._given = max(self._given, until)
        return piece
