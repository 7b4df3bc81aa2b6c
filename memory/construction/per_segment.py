"""Per-segment construction: every segment has its own block, so a change invalidates only that segment's block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memory.construction.isolated import Isolated
from memory.construction.static_dynamic import check_log, log_units
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore


@dataclass(frozen=True)
class PerSegment(Isolated):
    """Construction in which each segment is a module of Prompt Cache (arXiv 2311.04934).

    Log lines are encoded as in `StaticDynamic`, so that the two constructions differ only for static groups' segments.
    """

    log: int = 512

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        lines = log_units(store, self.log)
        return [Unit.of("segment", [(s.id, store.tokens(s.id))], lines.get(s.id, ())) for s in segments]
