"""Contextual groups: KEEP's units, computed within a prompt and reused at any offset, as SparseX does with segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memory.construction.segments import Segments
from memory.construction.static_dynamic import check_log, group_units
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore


@dataclass(frozen=True)
class Groups(Segments):
    """KEEP's static groups and dynamic segments (arXiv 2602.23592, section 4.1), found as in SparseX (2606.01751).

    A segment such as a line of the action log depends on its context: encoded alone, it would have to be recomputed at
    every step. Here a new unit is computed within the first prompt that contains it, and attends to the rows before it.
    Later prompts reuse its rows until ``refresh`` computes them again, the oldest first. When a group becomes static or
    dynamic, it is divided into other units, which are computed again.

    The meaning of a log line depends on the actions before it: "went to the sink" with empty hands differs from the
    same line with a mug in them. So a stored log line is reused only if the earlier lines of its task are the same, up
    to ``log`` tokens of them. With ``log=0`` it is reused after any text.
    """

    refresh: float = 0.1
    log: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return group_units(segments, store, self.log)
