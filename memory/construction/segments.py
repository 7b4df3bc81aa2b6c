"""Every segment is a unit that is found again by its tokens, wherever in a prompt it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segment import Segment
from memory.stages import Capabilities, Unit
from memory.store import SegmentStore


@dataclass(frozen=True)
class Segments:
    """SparseX's segment cache (arXiv 2606.01751, sections 3.1 and 4.5): rows of earlier prompts at any offset.

    Nothing is encoded in isolation: a segment's rows are harvested from the first prompt they were computed in, and
    carry what stood before them there. Beside them an exact prefix is found by a hash chain over blocks of
    ``block_size`` tokens.
    """

    block_size: int = 16
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True, harvests=True)
    assembly: ClassVar[str] = "reuse"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is no block: use 1 or more")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]
