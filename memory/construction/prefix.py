"""The whole memory is one unit, of which the part that has not changed since earlier prompts is exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit


@dataclass(frozen=True)
class Prefix:
    """Prefix caching (arXiv 2309.06180): token-identical prefixes are reused, everything behind them is fresh.

    Rows are harvested from the working cache after the turn and found again by a hash chain over blocks of
    ``block_size`` tokens.
    """

    block_size: int = 16
    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, harvests=True)
    assembly: ClassVar[str] = "chain"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is no block: use 1 or more")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("prefix", ((segment.id, store.tokens(segment.id)) for segment in segments))]
