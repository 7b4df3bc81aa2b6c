"""A transcript's rows stay where they were computed, from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError, check_choice
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit

SURVIVORS = ("stay", "move")


@dataclass(frozen=True)
class Turns:
    """A session's working cache goes on with its next turn; a retention stage may drop rows of it between turns.

    ``survivors=stay``: a dropped position is redirected to the sentinel slot, all others keep slot, position and
    identity (IntentKV, arXiv 2606.09916). ``survivors=move``: survivors are numbered anew from 0 on, as prompt
    compressors do it; what stands behind the first gap is then no prefix of the next prompt, and is computed anew.

    Exact rows, those computed before anything was dropped, are shared between sessions as a prefix in blocks of
    ``block_size`` tokens; ``prefix_tokens`` of them at most stay when no session uses them.
    """

    block_size: int = 16
    prefix_tokens: int = 4096
    survivors: str = "stay"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, harvests=True)
    assembly: ClassVar[str] = "turns"

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is no block: use 1 or more")
        if self.prefix_tokens < 0:
            raise ConfigError(f"prefix_tokens={self.prefix_tokens} is negative: use 0 or more")
        check_choice("survivors", self.survivors, SURVIVORS)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("prefix", ((segment.id, store.tokens(segment.id)) for segment in segments))]
