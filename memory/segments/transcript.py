"""Transcript of a session in the `append` layout, in which the prompt only grows."""

from __future__ import annotations

from collections.abc import Sequence

from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore

Part = tuple[str, tuple[int, ...]]  # name, token ids


class Transcript:
    """Segments and turns, oldest first, ``limit`` tokens at most.

    Each turn adds the chosen segments whose current version is not in the transcript yet, then the query; old versions
    stay in place. A `history` segment written since the first turn is left out, because an earlier turn contains
    its skill as the answer. ``newline`` (token ids) precedes new segments if the transcript does not end with it.
    """

    def __init__(self, limit: float, newline: Sequence[int] = ()) -> None:
        self.limit, self._newline = limit, tuple(newline)
        self.clear()

    def clear(self) -> None:
        """Delete all turns; the next turn is the first again."""
        self._parts: list[Part] = []
        self._versions: dict[str, tuple[int, int]] = {}  # creation number and version of each segment, by id
        self._pending: list[Segment] = []  # segments that the current turn adds
        self._length = 0
        self._turns = 0
        self._began = -1  # step of the first turn

    def fits(self, segments: Sequence[Segment], store: SegmentStore, query: Sequence[int]) -> bool:
        """Tell whether there is room for a turn with these segments and this query."""
        parts = self._to_parts(self._new_segments(segments), store)
        return self._length + sum(len(tokens) for _, tokens in parts) + len(query) <= self.limit

    def memory(self, segments: Sequence[Segment], store: SegmentStore) -> Unit:
        """Return everything before this turn's query as one unit; `close` adds the turn to the transcript."""
        if not self._parts:
            self._began = store.step
        self._pending = self._new_segments(segments)
        return Unit.of("prefix", [*self._parts, *self._to_parts(self._pending, store)])

    def close(self, store: SegmentStore, query: Sequence[int]) -> None:
        """Add the new segments and the query of the turn that was prefilled."""
        parts = self._to_parts(self._pending, store)
        self._versions.update((segment.id, (segment.created, segment.version)) for segment in self._pending)
        self._turns += 1
        for name, token_ids in (*parts, (f"turn {self._turns}", tuple(query))):
            self._add(name, token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add the result of the turn, such as the decided skill."""
        if token_ids:
            self._add(f"answer {self._turns}", tuple(token_ids))

    def _new_segments(self, segments: Sequence[Segment]) -> list[Segment]:
        return [
            segment
            for segment in segments
            if self._versions.get(segment.id) != (segment.created, segment.version)
            and not (segment.category == "history" and self._parts and segment.last_changed > self._began)
        ]

    def _to_parts(self, segments: Sequence[Segment], store: SegmentStore) -> list[Part]:
        parts = [(segment.id, store.tokens(segment.id)) for segment in segments]
        within_line = self._parts and self._parts[-1][1][-len(self._newline) :] != self._newline
        return [(f"break {self._turns}", self._newline), *parts] if parts and self._newline and within_line else parts

    def _add(self, name: str, token_ids: tuple[int, ...]) -> None:
        self._parts.append((name, token_ids))
        self._length += len(token_ids)
