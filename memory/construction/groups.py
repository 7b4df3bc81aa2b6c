"""KEEP's units, found again by their tokens: rows of the prompt that computed them, not encoded apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from memory.construction.action_log import check_log
from memory.construction.segments import Segments
from memory.construction.static_dynamic import units
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Unit


@dataclass(frozen=True)
class Groups(Segments):
    """Static groups and single dynamic segments (arXiv 2602.23592, section 4.1) in SparseX's look-up (2606.01751).

    What changes, such as a line of what the agent did, says little alone, and where everything that is new is encoded
    alone its recomputation never ends. Here a new unit is computed in the prompt that reads it first, behind all that
    stands before it there, and keeps those rows until they are among the oldest and computed anew (``refresh``). A
    group whose kind changes is another unit, and computed anew.

    A line of what the agent does is another one where something else was done before it: rows from when it went to the
    sink with nothing in its hand do not tell that it went there to put something down. So such a line is found again
    only behind the ``log`` tokens at most of its task that it was computed behind; 0: its text is enough.
    """

    refresh: float = 0.1
    log: int = 512
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True, harvests=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return list(units(segments, store, self.log))
