"""KEEP's memory construction: static groups are encoded whole, everything else segment by segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from memory.segment import Segment
from memory.stages import Capabilities, Unit
from memory.store import SegmentStore


@dataclass(frozen=True)
class StaticDynamic:
    """KEEP (arXiv 2602.23592, section 4.1): full attention inside a static group, isolated dynamic segments.

    When a group changes its kind its tokens make other units, whose blocks are other blocks: that is the recomputation.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True)
    assembly: ClassVar[str] = "blocks"

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return list(_units(segments, store))


def _units(segments: Sequence[Segment], store: SegmentStore) -> Iterator[Unit]:
    def group(segment: Segment) -> int:
        found = store.graph.static_group(segment)
        return -1 if found is None else found.id

    for id, run in groupby(segments, key=group):
        parts = [(segment.id, store.tokens(segment.id)) for segment in run]
        if id >= 0:
            yield Unit.of("static_group", parts)
        else:
            yield from (Unit.of("segment", [part]) for part in parts)
