"""KEEP's memory construction: static groups are encoded whole, everything else segment by segment, the log in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from memory.construction.action_log import alone, check_log, lines
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit


@dataclass(frozen=True)
class StaticDynamic:
    """KEEP (arXiv 2602.23592, section 4.1): full attention inside a static group, isolated dynamic segments.

    When a group changes its kind its tokens make other units, whose blocks are other blocks: that is the recomputation.

    The paper says nothing of a log, which changes at every step and yet only grows. Nothing before a new line can see
    it, so a line of what the agent has done in its task is encoded behind the lines before it, in the prompt or not:
    it costs what it costs alone. After ``log`` tokens it begins anew; 0: its lines are segments like others.
    """

    log: int = 512
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True)
    assembly: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return list(units(segments, store, self.log))


def units(segments: Sequence[Segment], store: SegmentStore, log: int) -> Iterator[Unit]:
    """Static groups, and every other segment alone; lines of the log behind ``log`` tokens of it at most."""
    behind = lines(store, log)

    def group(segment: Segment) -> int:
        found = store.graph.static_group(segment)
        return -1 if found is None else found.id

    for id, run in groupby(segments, key=group):
        if id >= 0:
            yield Unit.of("static_group", [(segment.id, store.tokens(segment.id)) for segment in run])
        else:
            yield from (alone(segment, store, behind) for segment in run)
