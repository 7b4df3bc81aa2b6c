"""Every segment is a unit of its own: a change invalidates one segment and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memory.segment import Segment
from memory.stages import Capabilities, Unit
from memory.store import SegmentStore


@dataclass(frozen=True)
class PerSegment:
    """Prompt Cache's modules (arXiv 2311.04934) at the grain of single segments."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True)
    assembly: ClassVar[str] = "blocks"

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]
