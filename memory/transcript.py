"""The `append` layout: one transcript that only ever grows."""

from __future__ import annotations

from collections.abc import Sequence

from memory.segment import Segment
from memory.stages import Unit
from memory.store import SegmentStore


class Transcript:
    """Segments as they were told and turns as they were taken, in order of time.

    Each turn brings the chosen segments whose present version has not been told yet, then the query; old versions stay
    where they are. When the next turn would not fit into ``limit`` tokens, the transcript begins anew.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        self._parts: list[tuple[str, tuple[int, ...]]] = []
        self._told: dict[str, tuple[int, int]] = {}
        self._length = 0
        self._turns = 0

    def memory(self, segments: Sequence[Segment], store: SegmentStore, query: Sequence[int]) -> Unit:
        """Everything before the query of this turn. Nothing is written down until ``close``."""
        news = [s for s in segments if self._told.get(s.id) != (s.created, s.version)]
        if self._length + sum(len(store.tokens(s.id)) for s in news) + len(query) > self.limit:
            self.clear()
            news = list(segments)
        self._news = [(s, store.tokens(s.id)) for s in news]
        return Unit.of("prefix", [*self._parts, *((s.id, tokens) for s, tokens in self._news)])

    def close(self, query: Sequence[int]) -> None:
        """The turn was prefilled: its news and its query are part of the transcript now."""
        for segment, tokens in self._news:
            self._told[segment.id] = segment.created, segment.version
            self._add(segment.id, tokens)
        self._turns += 1
        self._add(f"turn {self._turns}", tuple(query))

    def append(self, token_ids: Sequence[int]) -> None:
        """What came of the turn: the decided skill, say."""
        if token_ids:
            self._add(f"answer {self._turns}", tuple(token_ids))

    def _add(self, name: str, token_ids: tuple[int, ...]) -> None:
        self._parts.append((name, token_ids))
        self._length += len(token_ids)
