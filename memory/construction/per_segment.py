"""Every segment is a unit of its own: a change invalidates one segment and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memory.construction.action_log import alone, check_log, lines
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit


@dataclass(frozen=True)
class PerSegment:
    """Prompt Cache's modules (arXiv 2311.04934) at the grain of single segments.

    Lines of the log are encoded as by `StaticDynamic`, so that methods differ in what they repair, not in that.
    """

    log: int = 512
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True)
    assembly: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        log = lines(store, self.log)
        return [alone(segment, store, log) for segment in segments]
