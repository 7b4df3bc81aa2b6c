"""Detokenizer: text of a growing token sequence, in whole characters, up to the first stop string."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from memory.agents.text_match import MAX_INCOMPLETE, REPLACEMENT, TokenizerCoder


class Detokenizer:
    """Decoder of single tokens. Holds back incomplete characters and stop strings; ``hidden`` tokens have no text."""

    def __init__(self, coder: TokenizerCoder, stops: Sequence[str] = (), hidden: Collection[int] = ()) -> None:
        self._coder, self._stops, self._hidden = coder, tuple(stop for stop in stops if stop), hidden
        self._longest_stop = max(map(len, self._stops), default=0)
        self._tokens: list[int] = []
        self._visible: list[int] = []  # tokens that are not hidden
        self._text_lengths: list[int] = []  # length of the text after each token
        self._window_start = 0  # number of visible tokens before the window of `_decode`
        self._decoded = 0  # number of visible tokens that are decoded
        self._text = ""
        self._emitted = 0  # number of characters that were returned
        self.stop: str | None = None

    @property
    def count(self) -> int:
        """Number of tokens, up to the one that completed a stop string."""
        return len(self._tokens)

    @property
    def complete_tokens(self) -> tuple[list[int], str | None]:
        """Tokens up to the last whole character before a stop string, and their text (None if some are hidden)."""
        after = bisect_right(self._text_lengths, len(self._text))
        end = self._text_lengths[after - 1] if after else 0
        tokens = self._tokens[: bisect_left(self._text_lengths, end) + 1 if end else 0]
        return tokens, None if any(token in self._hidden for token in tokens) else self._text[:end]

    def feed(self, token: int) -> str:
        """Add a token; return the new text that later tokens cannot change."""
        if self.stop is not None:
            return ""
        self._tokens.append(token)
        if token not in self._hidden:
            self._visible.append(token)
            self._text += self._decode()
        self._text_lengths.append(len(self._text))
        self._cut_at_stop()
        return self._emit(len(self._text) if self.stop is not None else self._certain_length())

    def flush(self) -> str:
        """Return the held-back text after the last token, without an incomplete character."""
        return self._emit(len(self._text))

    def _decode(self) -> str:
        """Decode the new tokens with the previous ones as context; "" while a character is incomplete."""
        before = self._coder.decode(self._visible[self._window_start : self._decoded])
        window = self._coder.decode(self._visible[self._window_start :])
        if window.endswith(REPLACEMENT) and len(self._visible) - self._decoded <= MAX_INCOMPLETE:
            return ""
        self._window_start, self._decoded = self._decoded, len(self._visible)
        return window[len(before) :]

    def _cut_at_stop(self) -> None:
        """Cut the text before the first stop string, if any. Of stop strings at one position the longest counts."""
        start = max(0, self._emitted - self._longest_stop)
        matches = [(place, stop) for stop in self._stops if (place := self._text.find(stop, start)) >= 0]
        if matches:
            place, self.stop = min(matches, key=lambda match: (match[0], -len(match[1])))
            self._text = self._text[:place]

    def _certain_length(self) -> int:
        """Return the length of the text before any suffix that may begin a stop string."""
        for place in range(max(self._emitted, len(self._text) - self._longest_stop), len(self._text)):
            if any(stop.startswith(self._text[place:]) for stop in self._stops):
                return place
        return len(self._text)

    def _emit(self, until: int) -> str:
        piece = self._text[self._emitted : until]
        self._emitted = max(self._emitted, until)
        return piece
