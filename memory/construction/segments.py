"""Every segment is a unit that is found again by its tokens, wherever in a prompt it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit


@dataclass(frozen=True)
class Segments:
    """SparseX's segment cache (arXiv 2606.01751, sections 3.1 and 4.5): rows of earlier prompts at any offset.

    Nothing is encoded in isolation: a segment's rows are harvested from the first prompt they were computed in, and
    carry what stood before them there. Beside them an exact prefix is found by a hash chain over blocks of
    ``block_size`` tokens.

    Rows that were moved remember what stood before them once. ``refresh`` is the least share of a prompt's memory that
    is new: where new segments are less, those whose rows are oldest are computed anew, and keep the new rows. The paper
    has none of that (0).
    """

    block_size: int = 16
    refresh: float = 0.0
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True, harvests=True)
    assembly: ClassVar[str] = "reuse"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is no block: use 1 or more")
        if not 0 <= self.refresh <= 1:
            raise ConfigError(f"refresh={self.refresh} is a share: use 0 to 1")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]
