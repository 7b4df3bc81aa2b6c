"""The memory is what earlier turns left behind: rows harvested in the context in which they were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError, check_choice
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit

CUTS = ("tokens", "segment")
POSITIONS = ("decoupled", "coupled")


@dataclass(frozen=True)
class History:
    """MemArt's memory: the transcript's keys and values in blocks, of which a latent retrieval may choose.

    A block holds ``block_size`` tokens; what the last turn left over is always in the prompt until it makes up a block.
    ``cut=segment``: a block is a part of the transcript instead, a segment or a turn. ``positions=decoupled``: what is
    chosen is numbered from 0 on, the query behind it. ``coupled``: rows keep their places in the whole transcript, to
    show how that fails beyond the model's context. With all blocks in, the two are the same and exact.
    """

    block_size: int = 16
    cut: str = "tokens"
    positions: str = "decoupled"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, harvests=True)
    assembly: ClassVar[str] = "history"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is no block: use 1 or more")
        for name, known in (("cut", CUTS), ("positions", POSITIONS)):
            check_choice(name, getattr(self, name), known)

    @property
    def uniform(self) -> bool:
        """Whether any block could stand in any other's place."""
        return self.cut == "tokens" and self.positions == "decoupled"

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("prefix", ((segment.id, store.tokens(segment.id)) for segment in segments))]

    def stops(self, memory: Unit, start: int, stop: int) -> list[int]:
        """Where blocks end that are full once tokens ``start:stop`` are known; behind ``memory`` lies one turn."""
        if self.cut == "tokens":
            return list(range(start + self.block_size, stop + 1, self.block_size))
        return sorted({span.stop for span in memory.spans if span.stop > start} | {stop})
