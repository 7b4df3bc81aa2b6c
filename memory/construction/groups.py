"""Contextual groups: KEEP's units in SparseX's any-offset look-up, with the rows of the prompt that computed them."""

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
    """Static groups and single dynamic segments (arXiv 2602.23592, section 4.1) in SparseX's look-up (2606.01751).

    A changed segment, such as a line of the action log, depends on its context, and if encoded alone has to be
    recomputed at every step. Here a new unit is computed in the first prompt that contains it, after the rows before
    it, and keeps those rows until they are refreshed (``refresh``), the oldest first. A group whose kind changes
    becomes another unit, and is computed again.

    A log line depends on the actions before it: "went to the sink" with empty hands differs from the same line when
    something is to be put down. So a stored log line is reused only after the same ``log`` tokens of its task; 0: after
    any text.
    """

    refresh: float = 0.1
    log: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return group_units(segments, store, self.log)
