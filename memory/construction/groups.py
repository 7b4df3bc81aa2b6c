"""Contextual groups: segments grouped as in KEEP, but computed within a prompt and reused at any offset (SparseX)."""

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
    """Construction of KEEP's units (arXiv 2602.23592, section 4.1), found by their tokens as in SparseX (2606.01751).

    A unit is a static group (without recent changes) or one other segment. The first prompt with a unit computes it
    after the prompt's earlier rows, because some units (such as lines of the action log) depend on their context.
    Later prompts reuse these rows. If the new rows of a prompt are less than the share ``refresh`` of its memory, the
    oldest reused rows are computed again. When a group becomes static or dynamic, its units change.

    The meaning of a log line depends on the actions before it: "went to the sink" with empty hands differs from the
    same line with a mug in them. So the task's lines are divided into runs of at most ``log`` tokens, and a stored line
    is reused only after the same lines of its run. With ``log=0`` a line is reused after any text.
    """

    refresh: float = 0.1
    log: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return group_units(segments, store, self.log)
