"""Fixed-size construction: blocks of a fixed number of tokens, cut through segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keep_agent.errors import ConfigError
from memory.construction.isolated import Isolated
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore


@dataclass(frozen=True)
class FixedBlocks(Isolated):
    """Memory in blocks of ``size`` tokens, on which KEEP's paper runs CacheBlend (arXiv 2405.16444) and Prompt Cache.

    A block is found by its tokens. A changed segment invalidates its blocks and, if its length changes, all later ones.
    """

    size: int = 128

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size={self.size} tokens is too small for a block: use 1 or more")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        whole = Unit.of("block", ((segment.id, store.tokens(segment.id)) for segment in segments))
        total = len(whole.token_ids)
        return whole.cut([min(start + self.size, total) for start in range(0, total, self.size)])
