"""Timeline of a prefill, simulated or measured: events on lanes, in seconds from its start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from memory.engine.trace import PrefillTrace

COMPUTE, IMPORTANCE, LINK = LANES = ("compute", "importance", "link")


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work of a layer, on the lane of the worker that did it; times in seconds."""

    lane: str
    kind: str  # attention, importance (choice of the next layer's rows), mlp or load
    layer: int
    start: float
    end: float
    nbytes: int = 0  # bytes moved by a load
    runs: int = 0  # runs of adjacent rows that a load moves

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Events of one prefill, sorted by their start."""

    events: tuple[Event, ...]

    @classmethod
    def of_trace(cls, trace: PrefillTrace, separate_worker: bool = False) -> Timeline:
        """Read a measured prefill; ``separate_worker``: whether a worker beside the computing one chose the rows."""
        loads = [Event(LINK, "load", load.first, load.start, load.end, load.nbytes, load.runs) for load in trace.loads]
        mlp_ends = {piece.layer: piece.end for piece in trace.computes if piece.kind == "mlp"}
        pieces = []
        for piece in trace.computes:
            lane, start = COMPUTE, piece.start
            if piece.kind == "importance":  # if the MLP ends during the choice, only the time after that is counted
                lane, end = IMPORTANCE if separate_worker else COMPUTE, mlp_ends.get(piece.layer, start)
                start = end if start < end <= piece.end else start
            pieces.append(Event(lane, piece.kind, piece.layer, start, piece.end))
        return cls.sorted([*loads, *pieces])

    @classmethod
    def sorted(cls, events: list[Event]) -> Timeline:
        """Sort events, and shift them to start at 0."""
        zero = min((event.start for event in events), default=0.0)
        ordered = sorted(events, key=lambda event: (event.start, event.end, LANES.index(event.lane)))
        return cls(tuple(replace(event, start=event.start - zero, end=event.end - zero) for event in ordered))

    @cached_property
    def makespan(self) -> float:
        """Seconds until the last event ends."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def nbytes(self) -> int:
        return sum(event.nbytes for event in self.events)

    def on(self, lane: str) -> list[Event]:
        return [event for event in self.events if event.lane == lane]

    def busy(self, lane: str) -> float:
        return sum(event.seconds for event in self.on(lane))

    def idle(self, lane: str) -> float:
        """Return the idle time of the lane's worker during the prefill."""
        return self.makespan - self.busy(lane)
