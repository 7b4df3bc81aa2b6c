"""Units: token ids whose keys and values are computed jointly, and the segments in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start:stop`` of one segment, within a unit or within a prompt."""

    segment: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens whose keys and values are computed jointly, seeing only themselves, the context prefix and ``behind``."""

    kind: str  # "static_group" | "segment" | "block" | "prefix" | "new"
    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]  # in unit coordinates; a fixed-size block may hold parts of segments
    namespace: str = ""
    reusable: bool = True  # False: these rows are always fresh (never looked up or stored)
    behind: tuple[tuple[int, ...], ...] = ()  # token ids of units it is computed behind, each behind those before it

    @classmethod
    def of(cls, kind: str, parts: Iterable[tuple[str, Sequence[int]]]) -> Unit:
        """A unit of whole segments, one after another: ``(segment id, its token ids)`` each."""
        tokens: list[int] = []
        spans = []
        for id, ids in parts:
            spans.append(Span(id, len(tokens), len(tokens) + len(ids)))
            tokens.extend(ids)
        return cls(kind, tuple(tokens), tuple(spans))

    @classmethod
    def joined(cls, units: Sequence[Unit]) -> Unit:
        """One unit of the last one's kind: the tokens of all, one after another."""
        tokens: list[int] = []
        spans: list[Span] = []
        for unit in units:
            spans += [Span(s.segment, len(tokens) + s.start, len(tokens) + s.stop) for s in unit.spans]
            tokens += unit.token_ids
        return replace(units[-1], token_ids=tuple(tokens), spans=tuple(spans))

    def cut(self, stops: Sequence[int]) -> list[Unit]:
        """Pieces that end at ``stops`` (rising, the last is the unit's end), with the parts of segments in them."""
        pieces, start, first = [], 0, 0
        for stop in stops:
            spans = []
            while first < len(self.spans) and self.spans[first].stop <= start:
                first += 1
            for span in self.spans[first:]:
                if span.start >= stop:
                    break
                spans.append(Span(span.segment, max(span.start, start) - start, min(span.stop, stop) - start))
            pieces.append(replace(self, token_ids=self.token_ids[start:stop], spans=tuple(spans)))
            start = stop
        return pieces


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if different.size else size
