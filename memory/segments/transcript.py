"""The `append` layout: one transcript that only ever grows."""

from __future__ import annotations

from collections.abc import Sequence

from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore

Part = tuple[str, tuple[int, ...]]  # name, token ids


class Transcript:
    """Segments as they were told and turns as they were taken, in order of time; ``limit`` tokens at most.

    Each turn brings the chosen segments whose present version has not been told yet, then the query; old versions stay
    where they are. An executed skill (category history) is told by its own turn, if that is in here. News begin on a
    new line: behind what does not end in ``newline``, it comes first.
    """

    def __init__(self, limit: float, newline: Sequence[int] = ()) -> None:
        self.limit = limit
        self._newline = tuple(newline)
        self.clear()

    def clear(self) -> None:
        """Begin anew with the next turn."""
        self._parts: list[Part] = []
        self._told: dict[str, tuple[int, int]] = {}
        self._news: list[Segment] = []
        self._length = 0
        self._turns = 0
        self._began = -1  # step of the first turn in here

    def fits(self, segments: Sequence[Segment], store: SegmentStore, query: Sequence[int]) -> bool:
        """Is there room for a turn with these segments and this query?"""
        news = self._tell(self._untold(segments), store)
        return self._length + sum(len(tokens) for _, tokens in news) + len(query) <= self.limit

    def memory(self, segments: Sequence[Segment], store: SegmentStore) -> Unit:
        """Everything before the query of this turn. Nothing is written down until ``close``."""
        if not self._parts:
            self._began = store.step
        self._news = self._untold(segments)
        return Unit.of("prefix", [*self._parts, *self._tell(self._news, store)])

    def close(self, store: SegmentStore, query: Sequence[int]) -> None:
        """The turn was prefilled: its news and its query are part of the transcript now."""
        parts = self._tell(self._news, store)
        self._told.update((segment.id, (segment.created, segment.version)) for segment in self._news)
        self._turns += 1
        for name, token_ids in (*parts, (f"turn {self._turns}", tuple(query))):
            self._add(name, token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """What came of the turn: the decided skill, say."""
        if token_ids:
            self._add(f"answer {self._turns}", tuple(token_ids))

    def _untold(self, segments: Sequence[Segment]) -> list[Segment]:
        return [
            segment
            for segment in segments
            if self._told.get(segment.id) != (segment.created, segment.version)
            and not (segment.category == "history" and self._parts and segment.last_changed > self._began)
        ]

    def _tell(self, news: Sequence[Segment], store: SegmentStore) -> list[Part]:
        parts = [(segment.id, store.tokens(segment.id)) for segment in news]
        torn = self._parts and self._parts[-1][1][-len(self._newline) :] != self._newline
        return [(f"break {self._turns}", self._newline), *parts] if parts and self._newline and torn else parts

    def _add(self, name: str, token_ids: tuple[int, ...]) -> None:
        self._parts.append((name, token_ids))
        self._length += len(token_ids)
